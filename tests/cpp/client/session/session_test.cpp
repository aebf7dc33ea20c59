#include "client/session/session.h"

#include <algorithm>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/memory/storage.h"
#include "client/session_fixture.h"

namespace torch_remote::client::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kCallWindow = CallWindow::kFull;

// --- submitting

TEST_F(SessionTest, MessagesOfEightThreadsArriveInTheOrderInWhichTheyWereSubmitted) {
  connect();
  constexpr uint8_t kThreads = 8;
  constexpr uint64_t kEach = 5000;
  uint64_t next = 0;  // under the submit lock
  std::vector<std::thread> threads;
  for (uint8_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 1; i <= kEach; ++i) {
        Submission at(session);
        at.number_call({});
        encode(at.writer(), wire::Resize{++next, thread, i});
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();

  const auto messages = server.wait_for_messages(kThreads * kEach);

  ASSERT_EQ(messages.size(), kThreads * kEach);
  std::array<uint64_t, kThreads> last{};
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].number, i + 1);
    ASSERT_EQ(messages[i].detail, ++last.at(messages[i].device));
  }
  EXPECT_EQ(session.order().counters().calls.load(), kThreads * kEach);
}

// A session with a server that would keep it for a while.
class LeasedSessionTest : public SessionTest {
 protected:
  LeasedSessionTest()
      : SessionTest(transport::memory_pair(), [](Endpoint& endpoint) {
          endpoint.redial = [](auto) -> std::unique_ptr<transport::Stream> { return nullptr; };
          endpoint.has_listener = true;
        }) {}
};

// Promise 11.
TEST_F(LeasedSessionTest, OneThatIsStoppedDuringItsHandshakeIsClosedWhenTheServerWelcomesIt) {
  const Bytes hello = read_client_hello(server.stream());
  auto stopping =
      std::async(std::launch::async, [&] { session.link().stop(kPatience, "the program ends"); });
  while (!session.link().is_lost())
    std::this_thread::yield();
  // A program that ends meanwhile could not close it any more.
  EXPECT_EQ(stopping.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  send_block(server.stream(), body_of(server_hello("", hello)));
  wire::decode_proof(read_block(server.stream()));
  send_block(server.stream(), body_of(a_welcome()));
  server.start();
  EXPECT_EQ(server.wait_for_close_reason(), "the program ends");
  stopping.get();
}

// Lives while waits look for Ctrl-C by calling the function.
class Interrupts {
 public:
  explicit Interrupts(std::function<void()> look) {
    look_ = std::move(look);
    python_hooks.check_signals = [] { look_(); };
  }

  ~Interrupts() { python_hooks.check_signals = nullptr; }

 private:
  static inline std::function<void()> look_;
};

// Promise 7.
TEST_F(SessionTest, WhatAnInterruptedCallGaveIsFreedAlsoIfItArrivesJustBefore) {
  connect();
  const RequestPtr request = ask();
  request->names = 1;
  request->first_name = 77;
  const Interrupts interrupts([&] {
    wire::Result result;
    result.kind = wire::ResultKind::kFresh;
    server.reply(request->id, body_of(std::vector<wire::Result>{result}));
    while (!request->done)
      std::this_thread::yield();
    throw std::runtime_error("interrupted");
  });
  EXPECT_EQ(error_of([&] { session.wait(request, "an answer"); }), "interrupted");
  submit(1);
  const auto messages = server.wait_for_messages(3);
  const auto freed = std::ranges::find(messages, wire::Tag::kFree, &Message::tag);
  ASSERT_NE(freed, messages.end());
  EXPECT_THAT(freed->names, ElementsAre(77));
}

TEST_F(SessionTest, WhatIsSubmittedBeforeTheConnectionIsThereIsSentFirst) {
  submit(1);
  submit(2);
  connect();
  submit(3);
  const auto messages = server.wait_for_messages(3);
  EXPECT_EQ(messages[0].number, 1);
  EXPECT_EQ(messages[1].number, 2);
  EXPECT_EQ(messages[2].number, 3);
}

TEST_F(SessionTest, AFrameIsCutWhenItIsLargeEnough) {
  const size_t each = body_of(wire::Resize{1, 0, 0}).size();
  const size_t count = 5 * kFrameTarget / (2 * each);
  for (size_t i = 0; i < count; ++i)
    submit(1);
  connect();
  const auto frames = server.wait_for_frames(3);
  // The first frame begins with a THREAD, which the fake server does not show.
  EXPECT_NEAR(frames[0].size(), kFrameTarget / each, 1);
  EXPECT_EQ(server.wait_for_messages(count).size(), count);
}

TEST_F(SessionTest, NothingIsSentForASubmissionThatAppendsNothing) {
  { const Submission at(session); }
  EXPECT_EQ(session.order().counters().calls.load(), 0);
  submit(7);
  connect();
  EXPECT_EQ(server.wait_for_messages(1).size(), 1);
}

// --- frees

TEST_F(SessionTest, FreesRideBehindTheCallsOfTheirFrameOldestFirst) {
  StorageRecord* first = make_storage(true);
  StorageRecord* second = make_storage(true);
  const std::vector<uint64_t> names = {first->name, second->name};
  delete_record(first);
  delete_record(second);
  submit(7);

  connect();

  const auto frames = server.wait_for_frames(1);
  ASSERT_EQ(frames[0].size(), 2);
  EXPECT_EQ(frames[0][0].number, 7);
  EXPECT_EQ(frames[0][1].tag, wire::Tag::kFree);
  EXPECT_EQ(frames[0][1].names, names);
}

TEST_F(SessionTest, AMebibyteOfFreesGoesInFrontOfTheNextMessage) {
  StorageRecord* large = make_storage(true, kFreedAtOnce);
  const uint64_t name = large->name;
  submit(7);
  delete_record(large);
  submit(8);

  connect();

  const auto frames = server.wait_for_frames(1);
  ASSERT_EQ(frames[0].size(), 3);
  EXPECT_EQ(frames[0][0].number, 7);
  EXPECT_THAT(frames[0][1].names, ElementsAre(name));
  EXPECT_EQ(frames[0][2].number, 8);
}

TEST_F(SessionTest, AStorageThatTheServerNeverHeardOfIsNotFreedThere) {
  StorageRecord* known = make_storage(true);
  const uint64_t name = known->name;
  delete_record(make_storage(false));
  delete_record(known);
  delete_record(make_storage(false));
  submit(7);

  connect();

  EXPECT_THAT(server.wait_for_messages(2)[1].names, ElementsAre(name));
}

TEST_F(SessionTest, AStorageIsFreedOnce) {
  connect();
  delete_record(make_storage(true));
  submit(7);
  server.wait_for_messages(2);
  const auto request = ask();
  server.wait_for_messages(3);
  server.reply(request->id);
  session.wait(request, "an answer");
  EXPECT_EQ(server.wait_for_messages(3).size(), 3);
}

// --- credit

TEST_F(SessionTest, WithoutCreditItWaitsUntilTheServerHasAppliedWhatItGot) {
  connect();
  submit(1, kCallWindow);
  server.wait_for_frames(1);
  std::atomic<bool> is_applied = false;
  auto waiting = std::async(std::launch::async, [&] {
    session.begin_call();
    return is_applied.load();
  });

  is_applied = true;
  server.apply_all();

  EXPECT_TRUE(waiting.get());
}

TEST_F(SessionTest, CreditIsTakenBeforeTheConnectionIsThere) {
  submit(1, kCallWindow);
  auto waiting = std::async(std::launch::async, [&] { session.begin_call(); });
  connect();
  server.wait_for_frames(1);
  server.apply_all();
  EXPECT_EQ(waiting.wait_for(kPatience), std::future_status::ready);
}

TEST_F(SessionTest, BelowTheWindowNobodyWaits) {
  connect();
  submit(1, CallWindow::kFirst - 1);
  session.begin_call();
}

TEST_F(SessionTest, TheFirstBurstWaitsForAServerThatHasAppliedNothing) {
  connect();
  std::atomic<uint64_t> submitted = 0;
  auto burst = std::async(std::launch::async, [&] {
    for (; submitted < 4000; ++submitted) {
      session.begin_call();
      submit(1);
    }
  });
  EXPECT_EQ(burst.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  EXPECT_LE(submitted, 2 * CallWindow::kFirst);
  while (burst.wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout)
    server.apply_all();
}

TEST_F(SessionTest, WhoWaitsForCreditLearnsOfTheServersDeath) {
  connect();
  submit(1, kCallWindow);
  auto waiting =
      std::async(std::launch::async, [&] { return error_of([&] { session.begin_call(); }); });
  server.wait_for_frames(1);
  server.die();
  EXPECT_THAT(waiting.get(), HasSubstr("is lost"));
}

// --- the end

TEST_F(SessionTest, EveryUseAfterTheServersDeathRaisesTheFirstCause) {
  connect();
  server.die();
  const std::string first = wait_for_the_end();
  EXPECT_THAT(first, HasSubstr("on fake://server is lost"));
  EXPECT_EQ(error_of([&] { submit(1); }), first);
  EXPECT_EQ(error_of([&] { session.synchronize(); }), first);
  session.link().stop(std::chrono::milliseconds(1), "a later cause");
  EXPECT_EQ(error_of([&] { submit(1); }), first);
  EXPECT_EQ(session.link().state(), "lost");
}

TEST_F(SessionTest, TheServersReasonForClosingIsTold) {
  connect();
  server.close("idle for 10 m");
  EXPECT_THAT(wait_for_the_end(), HasSubstr("idle for 10 m"));
}

TEST_F(SessionTest, EveryWaitingThreadLearnsOfTheServersDeath) {
  connect();
  std::vector<std::future<std::string>> waiting;
  for (int i = 0; i < 4; ++i)
    waiting.push_back(std::async(std::launch::async, [&] { return wait_for_the_end(); }));
  server.wait_for_messages(4);
  server.die();
  for (auto& text : waiting)
    EXPECT_THAT(text.get(), HasSubstr("is lost"));
}

TEST_F(SessionTest, StoppingSendsWhatIsQueuedAndTellsTheServer) {
  connect();
  submit(1);
  session.link().stop(kPatience, "enough");
  server.wait_for_end();
  EXPECT_EQ(server.wait_for_messages(1)[0].number, 1);
}

TEST_F(SessionTest, AUseAfterStoppingRaisesWhyItWasStopped) {
  connect();
  session.link().stop(kPatience, "enough of it");
  EXPECT_THAT(error_of([&] { submit(1); }), HasSubstr("enough of it"));
}

TEST_F(SessionTest, StoppingDoesNotWaitLongerThanItsPatience) {
  let_in(server.stream());  // and then reads nothing, and never hangs up
  session.welcome();
  submit(1);
  const auto since = std::chrono::steady_clock::now();
  session.link().stop(std::chrono::milliseconds(50), "enough");
  EXPECT_LT(std::chrono::steady_clock::now() - since, kPatience / 2);
  EXPECT_TRUE(session.link().is_lost());
}

TEST_F(SessionTest, StoppedWhileItConnectsItHangsUpOnTheServer) {
  const Bytes hello = read_client_hello(server.stream());
  session.link().stop(std::chrono::milliseconds(1), "enough");
  send_block(server.stream(), body_of(server_hello("", hello)));
  read_block(server.stream());
  send_block(server.stream(), body_of(a_welcome()));
  server.start();
  server.wait_for_end();
  EXPECT_THAT(error_of([&] {
                session.welcome();
                submit(1);
              }),
              HasSubstr("enough"));
}

TEST_F(SessionTest, AHandshakeThatFailsIsRaisedByEveryUse) {
  read_client_hello(server.stream());
  wire::Welcome refusal;
  refusal.answer = wire::Answer::kRefused;
  refusal.reason = "too many sessions";
  send_block(server.stream(), body_of(refusal));
  const std::string text = "cannot use fake://server: too many sessions";
  EXPECT_EQ(error_of([&] { session.welcome(); }), text);
  EXPECT_EQ(error_of([&] { submit(1); }), text);
}

}  // namespace
}  // namespace torch_remote::client::testing
