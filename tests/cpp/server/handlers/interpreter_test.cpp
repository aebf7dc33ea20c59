#include "server/handlers/interpreter.h"

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
