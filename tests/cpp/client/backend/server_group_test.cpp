#include "client/backend/server_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "../session_fixture.h"
#include "wire/group.h"
#include "wire/limits.h"

namespace torch_remote::client::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class ServerGroupTest : public SessionTest {
 protected:
  // Opens a group at a server that gives this answer to every query, and gives the error.
  std::string open(const wire::GroupAnswer& answer, milliseconds timeout) {
    connect_with_groups();
    return error_with_answers(body_of(answer), [&] {
      const ServerGroup group({&session, 0}, *store, {0, 2, timeout});
    });
  }

  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();

 private:
  void connect_with_groups() {
    transport::Stream& stream = server.stream();
    send_block(stream, body_of(server_hello("", read_client_hello(stream))));
    wire::decode_proof(read_block(stream));
    wire::Welcome welcome = a_welcome();
    welcome.capabilities |= wire::kGroupsCapability;
    send_block(stream, body_of(welcome));
    server.start();
    session.welcome();
  }
};

TEST_F(ServerGroupTest, AnAnswerThatAsksForNothingEndsTheSession) {
  EXPECT_THAT(open({}, kPatience), HasSubstr("is not open and waits for no key"));
  EXPECT_TRUE(session.link().is_lost());
}

TEST_F(ServerGroupTest, AServerThatAsksForEverIsLeftAfterTheTimeout) {
  store->set("key", std::string("value"));
  wire::GroupAnswer answer;
  answer.missing = {"key"};
  EXPECT_THAT(open(answer, milliseconds(20)), HasSubstr("was not open after 20 ms"));
  EXPECT_FALSE(session.link().is_lost());
}

// Promise 7b.
TEST_F(ServerGroupTest, AServerThatBringsValuesForEverIsLeft) {
  store->set("key", std::string("value"));
  wire::GroupAnswer answer;
  answer.missing = {"key"};
  for (int i = 0; i < 60; ++i)
    answer.entries.push_back({"value " + std::to_string(i), Bytes(wire::kMaxGroupValue)});
  EXPECT_THAT(open(answer, kPatience), HasSubstr("bytes of a process group"));
  EXPECT_TRUE(session.link().is_lost());
}

}  // namespace
}  // namespace torch_remote::client::testing
