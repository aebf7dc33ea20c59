#include "client/session/requests.h"

#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

namespace torch_remote::client::testing {
namespace {

using ::testing::ElementsAre;

bool is_readable(const DoneSignal& signal) {
  pollfd entry{signal.descriptor(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(DoneSignal, IsReadableFromSetUntilClear) {
  DoneSignal signal;
  EXPECT_FALSE(is_readable(signal));
  signal.clear();  // does not block
  for (int round = 0; round < 3; ++round) {
    for (int again = 0; again < 100'000; ++again)
      signal.set();  // more than a pipe holds
    EXPECT_TRUE(is_readable(signal));
    signal.clear();
    EXPECT_FALSE(is_readable(signal));
  }
}

TEST(Requests, AnAnswerSetsTheSignalsOfItsRequestOnly) {
  Requests requests;
  const auto first = requests.make({}, nullptr, 0);
  const auto second = requests.make({}, nullptr, 0);
  const auto one = std::make_shared<DoneSignal>();
  const auto other = std::make_shared<DoneSignal>();
  requests.signal_when_done(*first, one);
  requests.signal_when_done(*first, one);
  requests.signal_when_done(*second, other);
  requests.reply({first->id, {}});
  EXPECT_TRUE(is_readable(*one));
  EXPECT_FALSE(is_readable(*other));
  requests.fail(second->id, {});
  EXPECT_TRUE(is_readable(*other));
}

TEST(Requests, ASignalForADoneRequestIsSetAtOnce) {
  Requests requests;
  const auto request = requests.make({}, nullptr, 0);
  requests.complete_upload(request->id);
  const auto signal = std::make_shared<DoneSignal>();
  requests.signal_when_done(*request, signal);
  EXPECT_TRUE(is_readable(*signal));
}

TEST(Requests, ALostSessionSetsTheSignalsOfAllOpenRequests) {
  Requests requests;
  const auto request = requests.make({}, nullptr, 0);
  const auto signal = std::make_shared<DoneSignal>();
  requests.signal_when_done(*request, signal);
  requests.signal_all();
  EXPECT_TRUE(is_readable(*signal));
}

TEST(Requests, UploadsBeforeAPlaceAreThoseThatTheServerHasNotReceived) {
  Requests requests;
  const auto first = requests.make_upload(10, 0);
  requests.make({}, nullptr, 0);
  const auto second = requests.make_upload(10, 0);
  const uint64_t place = requests.next_id();
  const auto later = requests.make_upload(10, 0);

  EXPECT_EQ(requests.uploads_before(place).size(), 2);
  requests.complete_upload(first->id);
  EXPECT_THAT(requests.uploads_before(place), ElementsAre(second));
  requests.complete_upload(second->id);
  EXPECT_TRUE(requests.uploads_before(place).empty());
  EXPECT_THAT(requests.uploads_before(requests.next_id()), ElementsAre(later));
}

TEST(Requests, AbandonDoesNotWaitForAChunkThatIsSentAgainAfterAResume) {
  Requests requests;
  std::vector<std::byte> memory(8);
  const auto request = requests.make(memory, nullptr, 0);
  requests.bulk_target(request->id, 0, 8);  // the connection breaks here
  auto abandoned = std::async(std::launch::async, [&] { return requests.abandon(*request); });
  while (requests.bulk_target(request->id, 0, 8).data() == memory.data())
    std::this_thread::yield();

  EXPECT_EQ(abandoned.wait_for(std::chrono::milliseconds(500)), std::future_status::ready);
  EXPECT_TRUE(abandoned.get());
}

}  // namespace
}  // namespace torch_remote::client::testing
