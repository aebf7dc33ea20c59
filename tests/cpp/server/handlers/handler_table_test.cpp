#include "server/handlers/handler_table.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/handlers/all_handlers.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

struct Counter {
  void on_message(wire::Reader& reader) { sum += reader.u8(); }

  void on_query(uint64_t request, wire::Reader& /*reader*/) { sum += request; }

  uint64_t sum = 0;
};

// What an Interpreter makes handlers of.
struct Given {
  const Devices devices{c10::kCPU, 1};
  const OperatorTable operators{};
  Uploads uploads;
  Replies replies;
  SessionState state{devices, operators, uploads, replies, {}};
};

TEST(HandlerTableTest, AMessageReachesTheFunctionThatWasAddedForIt) {
  Counter first;
  Counter second;
  HandlerTable table;
  table.add<&Counter::on_message>(wire::Tag::kCall, first);
  table.add<&Counter::on_message>(wire::Tag::kRead, second);
  table.add<&Counter::on_query>(wire::QueryKind::kBarrier, second);
  const std::vector<std::byte> bytes{std::byte{5}};
  wire::Reader reader(bytes);

  table.find(wire::Tag::kCall)(reader);
  table.find(wire::QueryKind::kBarrier)(7, reader);

  EXPECT_EQ(first.sum, 5);
  EXPECT_EQ(second.sum, 7);
}

TEST(HandlerTableTest, ATagThatNobodyAddedIsNotFound) {
  const HandlerTable table;
  EXPECT_FALSE(table.find(wire::Tag::kCall));
  EXPECT_FALSE(table.find(static_cast<wire::Tag>(255)));
}

TEST(HandlerTableTest, ASecondHandlerOfAMessageIsAnInternalError) {
  Counter counter;
  HandlerTable table;
  table.add<&Counter::on_message>(wire::Tag::kCall, counter);
  EXPECT_THROW(table.add<&Counter::on_message>(wire::Tag::kCall, counter), InternalError);
}

TEST(HandlerTableTest, ASecondHandlerOfAKindOfQueryIsAnInternalError) {
  Counter counter;
  HandlerTable table;
  table.add<&Counter::on_query>(wire::QueryKind::kBarrier, counter);
  EXPECT_THROW(table.add<&Counter::on_query>(wire::QueryKind::kBarrier, counter), InternalError);
}

TEST(HandlerTableTest, AHandlerThatIsMadeTwiceIsAnInternalError) {
  const c10::InferenceMode inference_mode;
  Given given;
  for (MakeHandler* const make : kMakeHandlers) {
    HandlerTable table;
    const auto handler = make(given.state, table);
    EXPECT_THROW(make(given.state, table), InternalError);
  }
}

TEST(HandlerTableTest, AKindOfQueryWithoutAHandlerIsAnInternalError) {
  Counter counter;
  HandlerTable table;
  for (uint8_t kind = 0; kind <= static_cast<uint8_t>(wire::kMaxQueryKind); ++kind) {
    EXPECT_THROW(table.check_queries(), InternalError);
    table.add<&Counter::on_query>(static_cast<wire::QueryKind>(kind), counter);
  }
  table.check_queries();
}

// Every message of a client but QUERY, which the interpreter handles.
TEST(HandlerTableTest, EveryMessageOfAClientAndEveryKindOfQueryHasAHandler) {
  const c10::InferenceMode inference_mode;
  Given given;
  HandlerTable table;
  std::vector<std::unique_ptr<Handler>> handlers;
  for (MakeHandler* const make : kMakeHandlers)
    handlers.push_back(make(given.state, table));

  table.check_queries();
  for (const wire::Tag tag :
       {wire::Tag::kSignature, wire::Tag::kCall, wire::Tag::kContext, wire::Tag::kGenerator,
        wire::Tag::kResize, wire::Tag::kBegin, wire::Tag::kFree, wire::Tag::kRead,
        wire::Tag::kThread, wire::Tag::kStream, wire::Tag::kGoOn, wire::Tag::kFill,
        wire::Tag::kCloseFile})
    EXPECT_TRUE(table.find(tag)) << wire::to_text(tag);
}

}  // namespace
}  // namespace torch_remote::server::testing
