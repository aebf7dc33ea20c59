#include "client/backend/generator.h"

#include <future>

#include <gtest/gtest.h>

#include "client/fake_server.h"
#include "client/session/submission.h"
#include "transport/memory_stream.h"

namespace torch_remote::client::testing {
namespace {

// A device that nobody has connected: the tests publish it themselves.
constexpr c10::DeviceIndex kIndex = 7;

class GeneratorTest : public ::testing::Test {
 protected:
  GeneratorTest() : GeneratorTest(transport::memory_pair()) {}

  using Pair = std::pair<std::unique_ptr<transport::Stream>, std::unique_ptr<transport::Stream>>;

  explicit GeneratorTest(Pair pair)
      : server(std::move(pair.second)), session(*new Session(endpoint_of(std::move(pair.first)))) {
    let_in(server.stream());
    server.start();
    session.welcome();
  }

  // What a thread sends that has found the device.
  void use_device() {
    Submission at(session);
    encode(at.writer(), wire::Resize{1, 0, 0});
  }

  FakeServer server;
  Session& session;  // never destroyed: generators may outlive everything
  const c10::intrusive_ptr<RemoteGenerator> generator =
      c10::make_intrusive<RemoteGenerator>(kIndex, /*is_default=*/true);
};

TEST_F(GeneratorTest, TheSeedIsSentBeforeAnyThreadFindsTheDevice) {
  generator->set_current_seed(77);

  generator->attach(session, 0, [&] { use_device(); });

  const auto messages = server.wait_for_messages(2);
  EXPECT_EQ(messages[0].tag, wire::Tag::kGenerator);
  EXPECT_EQ(messages[0].number, wire::kDefaultGenerator);
  EXPECT_EQ(messages[0].detail, 77);
  EXPECT_EQ(messages[1].tag, wire::Tag::kResize);
}

TEST_F(GeneratorTest, ADefaultGeneratorThatWasNeverSeededChoosesItsSeedHere) {
  generator->attach(session, 0, [&] { use_device(); });

  const auto messages = server.wait_for_messages(2);
  EXPECT_EQ(messages[0].tag, wire::Tag::kGenerator);
  EXPECT_EQ(messages[0].detail, generator->current_seed());
  EXPECT_EQ(messages[1].tag, wire::Tag::kResize);
}

TEST_F(GeneratorTest, ASeedGivenWhileADeviceComesUpWaitsUntilItIsThere) {
  generator->set_current_seed(77);
  std::future<void> seeding;

  generator->attach(session, 0, [&] {
    seeding = std::async(std::launch::async, [&] { generator->set_current_seed(78); });
    EXPECT_EQ(seeding.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  });
  seeding.get();

  EXPECT_EQ(server.wait_for_messages(1)[0].detail, 77);
  EXPECT_EQ(generator->current_seed(), 78);
}

TEST_F(GeneratorTest, ALostSessionIsNoErrorForASeed) {
  session.link().stop(std::chrono::milliseconds(1), "the test has stopped it");
  generator->set_current_seed(77);

  EXPECT_NO_THROW(generator->attach(session, 0, [] {}));
}

}  // namespace
}  // namespace torch_remote::client::testing
