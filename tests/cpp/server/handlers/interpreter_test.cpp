#include "server/handlers/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

TEST(Interpreter, AMessageThatIsNotKnownIsSkippedAndAnsweredWithItsName) {
  Server server;
  FrameText frame;
  frame.tag(wire::Tag::kReply).whole(5).tag(static_cast<wire::Tag>(99)).store(1, {1, 2});

  server.apply(frame);

  ASSERT_EQ(server.notices.size(), 2);
  EXPECT_EQ(server.notices[0].operator_name, "REPLY");
  EXPECT_EQ(server.notices[1].operator_name, "message 99");
  EXPECT_FALSE(server.read(1, spec({2})).failed);
}

TEST(Interpreter, TooManyMessagesOfAnUnknownKindEndTheSession) {
  Server server;
  FrameText frame;
  for (uint64_t i = 0; i <= wire::kMaxSkippedTags; ++i)
    frame.tag(static_cast<wire::Tag>(99));
  EXPECT_THROW(server.apply(frame), ProtocolError);
}

TEST(Interpreter, BytesBehindTheEndOfAMessageAreAProtocolError) {
  Server server;
  FrameText frame;
  frame.tag(wire::Tag::kThread).whole(1).whole(1);
  EXPECT_THROW(server.apply(frame), ProtocolError);
}

// What the server does when a frame with CANCEL is received is in session_test.cpp.
TEST(Interpreter, ACancelledCallDoesNotBeginAndStopsItsThread) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).store(2, {3, 4}).signature(add_signature(0, 0, {2})));
  server.interpreter.cancel_to(5);  // each store() has two numbers

  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(3).cancel(5));
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(4).go_on(1));

  ASSERT_EQ(server.notices.size(), 1);
  EXPECT_EQ(server.notices[0].kind, wire::ErrorKind::kCancelled);
  EXPECT_EQ(server.notices[0].call, 5);
  EXPECT_EQ(server.notices[0].operator_name, "aten::add.Tensor");
  for (const uint64_t made : {3, 4})
    EXPECT_EQ(server.read(made, spec({2})).error.kind, wire::ErrorKind::kCancelled) << made;
  EXPECT_THAT(server.read(1, spec({2})).floats(), ::testing::ElementsAre(1, 2));
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(5));
  EXPECT_THAT(server.read(5, spec({2})).floats(), ::testing::ElementsAre(4, 6));
}

TEST(Interpreter, ACancelledCallThatTheClientWaitsForStopsNothing) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).store(2, {3, 4}).signature(add_signature(0, 0, {2})));
  server.interpreter.cancel_to(5);

  const auto replies =
      server.apply(FrameText().checked_call(9, 0).storage(1).storage(2).real(1).output(3));

  ASSERT_EQ(replies.size(), 1);
  EXPECT_EQ(replies[0].error.kind, wire::ErrorKind::kCancelled);
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(4));
  EXPECT_THAT(server.read(4, spec({2})).floats(), ::testing::ElementsAre(4, 6));
}

TEST(Interpreter, EveryKindOfQueryHasAHandler) {
  for (uint8_t kind = 0; kind <= static_cast<uint8_t>(wire::kMaxQueryKind); ++kind) {
    Server server;
    const uint64_t before = server.interpreter.answers();
    try {
      server.apply(FrameText().query(1, static_cast<wire::QueryKind>(kind)));
    } catch (const ProtocolError&) {  // its fields are missing
    }
    EXPECT_EQ(server.interpreter.answers(), before + 1) << "kind " << int{kind};
  }
}

}  // namespace
}  // namespace torch_remote::server::testing
