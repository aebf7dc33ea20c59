// The pieces of large reads, with values in the CPU's memory in the place of a GPU's.
#include "server/bytes/device_reads.h"

#include <future>

#include <gtest/gtest.h>
#include <pthread.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include "server/support.h"
#include "server/wire_client.h"
#include "transport/memory_stream.h"

namespace torch_remote::server::testing {
namespace {

// A server's end of a connection that sends replies and does nothing with what it receives.
class Sender : private transport::Connection::Handler {
 public:
  explicit Sender(std::unique_ptr<transport::Stream> stream)
      : connection_(std::move(stream), *this, {}) {
    replies.attach(&connection_);
    connection_.start();
  }

  void abort() { connection_.abort(); }

  Replies replies;

 private:
  std::vector<std::byte> take_messages(uint32_t& /*calls*/) override { return replies.take(); }

  void on_messages(uint64_t /*sequence*/, std::vector<std::byte> /*payload*/) override {}

  std::span<std::byte> bulk_target(uint64_t, uint64_t, uint64_t) override { return {}; }

  void on_bulk(uint64_t, uint64_t, uint64_t, bool) override {}

  void on_end(std::exception_ptr /*cause*/) noexcept override {}

  transport::Connection connection_;
};

constexpr int64_t kMany =
    3 * kReadBlocks * kReadPiece / 4 + 5;  // floats: more than all blocks hold

class DeviceReadsTest : public ::testing::Test {
 protected:
  std::pair<std::unique_ptr<transport::Stream>, std::unique_ptr<transport::Stream>> pair =
      transport::memory_pair();
  std::promise<uint64_t> failed;
};

TEST_F(DeviceReadsTest, AValueOfManyPiecesArrivesWholeAndTheBlocksAreUsedAgain) {
  WireClient client(std::move(pair.first));
  Sender sender(std::move(pair.second));
  DeviceReads reads(sender.replies, [](uint64_t, std::exception_ptr) {});
  const at::Tensor value = at::arange(kMany, at::kFloat);
  client.expect_bulk(5, value.nbytes());
  client.expect_bulk(6, kLargeRead);

  reads.add({5, value, nullptr});
  reads.add({6, at::full({kLargeRead / 4}, 7, at::kFloat), nullptr});

  EXPECT_EQ(client.wait(6).floats(), std::vector<float>(kLargeRead / 4, 7));
  const std::vector<float> floats = client.wait(5).floats();
  EXPECT_TRUE(std::equal(floats.begin(), floats.end(), value.const_data_ptr<float>()));
  client.close();
}

TEST_F(DeviceReadsTest, TheTokenIsReleasedWhenTheValueIsCopied) {
  WireClient client(std::move(pair.first));
  Sender sender(std::move(pair.second));
  DeviceReads reads(sender.replies, [](uint64_t, std::exception_ptr) {});
  client.expect_bulk(5, kLargeRead);
  std::promise<void> released;
  std::shared_ptr<const void> token(&released, [&released](const void*) { released.set_value(); });

  reads.add({5, at::full({kLargeRead / 4}, 1, at::kFloat), std::move(token)});

  EXPECT_EQ(released.get_future().wait_for(kPatience), std::future_status::ready);
  client.wait(5);
  client.close();
}

TEST_F(DeviceReadsTest, AReadThatNobodyReceivesDoesNotKeepTheSessionFromEnding) {
  Sender sender(std::move(pair.second));  // nobody reads from the other end
  {
    DeviceReads reads(sender.replies, [](uint64_t, std::exception_ptr) {});
    reads.add({5, at::full({kMany}, 1, at::kFloat), nullptr});
  }
  sender.abort();
}

TEST_F(DeviceReadsTest, AFailureIsToldAfterThePieces) {
  WireClient client(std::move(pair.first));
  Replies unattached;  // sending throws
  DeviceReads reads(unattached,
                    [this](uint64_t request, std::exception_ptr) { failed.set_value(request); });

  reads.add({5, at::full({kLargeRead / 4}, 1, at::kFloat), nullptr});

  EXPECT_EQ(failed.get_future().get(), 5U);
  client.close();
}

// No thread can be started while this lives: there is no memory for a stack of that size.
class WithoutNewThreads {
 public:
  WithoutNewThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 46);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }

  ~WithoutNewThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

  WithoutNewThreads(const WithoutNewThreads&) = delete;
  WithoutNewThreads& operator=(const WithoutNewThreads&) = delete;

 private:
  pthread_attr_t before_;
};

// Promise 7c.
TEST_F(DeviceReadsTest, WithoutAThreadForItAReadFailsAndTheSessionGoesOn) {
  Replies replies;
  DeviceReads reads(replies,
                    [this](uint64_t request, std::exception_ptr) { failed.set_value(request); });
  const at::Tensor value = at::full({kLargeRead / 4}, 1, at::kFloat);  // may start OpenMP's threads
  {
    const WithoutNewThreads limited;
    EXPECT_NO_THROW(reads.add({5, value, nullptr}));
  }
  auto told = failed.get_future();
  ASSERT_EQ(told.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(told.get(), 5U);
}

TEST(ReadBlocks, ThereAreNoMoreThanTheLimitAndAFreeOneIsUsedAgain) {
  const auto blocks = std::make_shared<ReadBlocks>();
  std::vector<std::shared_ptr<const at::Tensor>> taken;
  for (unsigned i = 0; i < kReadBlocks; ++i)
    taken.push_back(blocks->take(false));
  const void* const last = taken.back()->const_data_ptr();
  auto next = std::async(std::launch::async, [&] { return blocks->take(false); });
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);

  taken.pop_back();

  EXPECT_EQ(next.get()->const_data_ptr(), last);
  auto waits = std::async(std::launch::async, [&] { blocks->wait_until_free(); });
  taken.clear();
  waits.get();
  blocks->empty();
  EXPECT_NE(blocks->take(false), nullptr);
  blocks->end();
  EXPECT_EQ(blocks->take(false), nullptr);
}

}  // namespace
}  // namespace torch_remote::server::testing
