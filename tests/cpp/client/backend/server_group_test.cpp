#include "client/backend/server_group.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "../session_fixture.h"
#include "wire/group.h"

namespace torch_remote::client::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class ServerGroupTest : public SessionTest {
 protected:
  // Opens a group at a server that gives this answer to every query, and gives the error.
  std::string open(const wire::GroupAnswer& answer, milliseconds timeout) {
    connect_with_groups();
    auto error = std::async(std::launch::async, [&] {
      return error_of([&] { const ServerGroup group({&session, 0}, *store, {0, 2, timeout}); });
    });
    const Bytes body = body_of(answer);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    size_t answered = 0;
    while (error.wait_for(milliseconds(1)) != std::future_status::ready) {
      const auto messages = server.wait_for_messages(0);
      for (; answered < messages.size(); ++answered)
        server.reply(messages[answered].number, body);
      if (std::chrono::steady_clock::now() > end)
        server.die();
    }
    return error.get();
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

}  // namespace
}  // namespace torch_remote::client::testing
