#include "server/session.h"

#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mutex.h"
#include "support.h"
#include "transport/memory_stream.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience{10};

// The client's end of a connection to a session in this process.
class Client : private transport::Connection::Handler {
 public:
  explicit Client(std::unique_ptr<transport::Stream> stream)
      : connection_(std::move(stream), *this, {}) {
    connection_.start();
  }

  void send(FrameText& frame) {
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(frame.writer.take());
    }
    connection_.flush();
  }

  void send_bytes(std::vector<std::byte> bytes) {
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(std::move(bytes));
    }
    connection_.flush();
  }

  void upload(const wire::Begin& begin, std::span<const std::byte> bytes) {
    FrameText frame;
    encode(frame.writer, begin);
    send(frame);
    connection_.send_bulk(begin.upload, bytes, nullptr, [](bool) {});
  }

  void expect_bulk(uint64_t request, size_t bytes) {
    MutexLock lock(mutex_);
    bulk_[request].resize(bytes);
  }

  Reply wait(uint64_t request) {
    MutexLock lock(mutex_);
    while (!replies_.contains(request)) {
      if (has_ended_ || !changed_.wait_for(mutex_, kPatience))
        throw std::runtime_error("no reply");
    }
    return replies_[request];
  }

  std::string wait_for_end() {
    {
      MutexLock lock(mutex_);
      while (!has_ended_) {
        if (!changed_.wait_for(mutex_, kPatience))
          throw std::runtime_error("no end");
      }
    }
    return connection_.peer_close_reason();
  }

  void close() { connection_.close("done"); }

 private:
  std::vector<std::byte> take_messages(uint32_t& /*calls*/) override {
    MutexLock lock(mutex_);
    if (outgoing_.empty())
      return {};
    std::vector<std::byte> payload = std::move(outgoing_.front());
    outgoing_.pop_front();
    return payload;
  }

  void on_messages(uint64_t sequence, std::vector<std::byte> payload) override {
    for (Reply& reply : decode_replies(payload))
      done(std::move(reply));
    connection_.applied(sequence);
  }

  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override {
    MutexLock lock(mutex_);
    return std::span(bulk_.at(lane)).subspan(offset, length);
  }

  void on_bulk(uint64_t lane, uint64_t /*offset*/, uint64_t /*length*/, bool last) override {
    if (!last)
      return;
    Reply reply;
    reply.request = lane;
    {
      MutexLock lock(mutex_);
      reply.body = bulk_.at(lane);
    }
    done(std::move(reply));
  }

  void on_end(std::exception_ptr /*cause*/) noexcept override {
    {
      MutexLock lock(mutex_);
      has_ended_ = true;
    }
    changed_.notify_all();
  }

  void done(Reply reply) {
    {
      MutexLock lock(mutex_);
      replies_[reply.request] = std::move(reply);
    }
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::vector<std::byte>> outgoing_ GUARDED_BY(mutex_);
  std::map<uint64_t, Reply> replies_ GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<std::byte>> bulk_ GUARDED_BY(mutex_);
  bool has_ended_ GUARDED_BY(mutex_) = false;
  transport::Connection connection_;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest()
      : session_(std::move(pair_.second), devices_, table_, {}), client(std::move(pair_.first)) {
    executor_ = std::thread([this] { closed = session_.run(); });
  }

  ~SessionTest() override {
    client.close();
    executor_.join();
  }

  void end() {
    client.close();
    executor_.join();
    executor_ = std::thread([] {});
  }

 private:
  std::pair<std::unique_ptr<transport::Stream>, std::unique_ptr<transport::Stream>> pair_ =
      transport::memory_pair();
  const Devices devices_{c10::DeviceType::CPU, 1};
  const OperatorTable table_;
  Session session_;
  std::thread executor_;

 protected:
  Client client;
  bool closed = false;
};

TEST_F(SessionTest, ACallIsSentAndItsResultReadBack) {
  FrameText frame;
  frame.store(1, {1, 2}).store(2, {10, 20}).signature(add_signature(0, 0, {2}));
  frame.call(0).storage(1).storage(2).real(1).output(3).read(5, 3, spec({2}));

  client.send(frame);

  EXPECT_THAT(client.wait(5).floats(), ElementsAre(11, 22));
}

TEST_F(SessionTest, ALargeTensorGoesBothWaysAsBulk) {
  std::vector<float> values(1 << 20);
  std::iota(values.begin(), values.end(), 0.0F);
  const uint64_t bytes = values.size() * sizeof(float);
  FrameText make;
  make.resize(1, bytes);
  client.send(make);
  wire::Begin begin;
  begin.upload = 3;
  begin.storage = 1;
  begin.length = bytes;
  client.upload(begin, std::as_bytes(std::span(values)));
  client.expect_bulk(5, bytes);
  FrameText read;
  read.read(5, 1, spec({1 << 20}));

  client.send(read);

  EXPECT_EQ(client.wait(5).floats(), values);
}

TEST_F(SessionTest, ADownloadOnItsWayDoesNotSeeWhatComesAfterIt) {
  constexpr int64_t kCount = 4 << 20;  // more than the stream holds
  SignatureText fill(0, 0, "aten::fill_", "Scalar");
  fill.tensor("self", spec({kCount}), 0)
      .value("value", wire::ValueKind::kScalarInt)
      .outputs({same_tensor(0)});
  client.expect_bulk(5, kCount * sizeof(float));
  FrameText frame;
  frame.resize(1, kCount * sizeof(float)).signature(fill).call(0).storage(1).whole(1);
  frame.read(5, 1, spec({kCount})).call(0).storage(1).whole(2).read(6, 1, spec({1}), kCount - 1);

  client.send(frame);

  EXPECT_THAT(client.wait(6).floats(), ElementsAre(2));
  const auto values = client.wait(5).floats();
  EXPECT_EQ(values.front(), 1);
  EXPECT_EQ(values.back(), 1);
}

TEST_F(SessionTest, AMalformedFrameEndsTheSessionWithAReason) {
  client.send_bytes({std::byte{5}, std::byte{0xff}});
  EXPECT_THAT(client.wait_for_end(), HasSubstr("need 1 bytes"));
}

TEST_F(SessionTest, ACleanCloseEndsTheSession) {
  FrameText frame;
  frame.store(1, {1}).query(2, wire::QueryKind::kBarrier);
  client.send(frame);
  EXPECT_FALSE(client.wait(2).failed);

  end();

  EXPECT_TRUE(closed);
}

}  // namespace
}  // namespace torch_remote::server::testing
