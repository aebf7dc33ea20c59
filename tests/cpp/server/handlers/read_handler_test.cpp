#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/executor/entry.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "server/support.h"
#include "wire/limits.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ReadHandler, AReadOfAViewGivesItsElementsInOrder) {
  Server server;
  server.apply(FrameText().store(1, {1, 2, 3, 4, 5, 6}));
  wire::TensorSpec column = spec({2});
  column.strides = {3};

  EXPECT_THAT(server.read(1, column, 1).floats(), ElementsAre(2, 5));
}

// Promise 5.
TEST(ReadHandler, AReadOutsideItsStorageIsAnError) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}));

  EXPECT_EQ(server.read(1, spec({2}), 1).error.kind, wire::ErrorKind::kRefused);
  EXPECT_EQ(server.read(1, spec({2}), UINT64_MAX / 2).error.kind, wire::ErrorKind::kRefused);
}

// Note [Pinned storages].
TEST(ReadHandler, ALargeValueOfAPinnedStorageIsSentFromACopy) {
  const c10::InferenceMode inference_mode;
  const Devices devices(c10::kCPU, 1);
  const OperatorTable operators;
  Uploads uploads;
  Replies replies;
  SessionState state(devices, operators, uploads, replies, {});
  HandlerTable table;
  const std::unique_ptr<Handler> handler = make_read_handler(state, table);
  constexpr int64_t kCount = 2 * wire::kMaxInlineBytes / sizeof(float);
  Entry& entry = state.storages.make(1, kCount * sizeof(float), c10::kCPU, 0, {});
  state.storages.prepare(entry, true);
  state.storages.resolve(entry, marshal::make_tensor_recipe(spec({kCount})), 0).zero_();
  const auto held = pin(entry);
  FrameText frame;
  frame.read(1, 1, spec({kCount}), 0);
  wire::Reader reader(frame.bytes());
  wire::ReceivedMessage message = wire::next_message(reader);

  // Without a connection it gets no further than to the copy.
  EXPECT_THAT([&] { table.find(message.tag)(message.body); },
              ThrowsMessage<ConnectionError>(HasSubstr("no connection to reply on")));
  EXPECT_EQ(entry.sending, nullptr);
}

}  // namespace
}  // namespace torch_remote::server::testing
