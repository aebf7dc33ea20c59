#include "server/session/session.h"

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/support.h"
#include "server/wire_client.h"
#include "transport/memory_stream.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  WireClient client;
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
  client.send(std::vector<std::byte>{std::byte{5}, std::byte{9}, std::byte{0}});
  EXPECT_THAT(client.wait_for_end(), HasSubstr("need 9 bytes"));
}

TEST_F(SessionTest, ACleanCloseEndsTheSession) {
  FrameText frame;
  frame.store(1, {1}).query(2, wire::QueryKind::kBarrier);
  client.send(frame);
  EXPECT_FALSE(client.wait(2).failed);

  end();

  EXPECT_TRUE(closed);
}

// A session whose client can come back for an hour; `unused_lease` while it holds nothing.
class LeasedSession {
 public:
  explicit LeasedSession(std::unique_ptr<transport::Stream> stream)
      : session(std::move(stream), devices_, table_, hooks(), options()) {}

  static Session::Hooks hooks() {
    Session::Hooks hooks;
    hooks.lease = std::chrono::hours(1);
    hooks.unused_lease = std::chrono::milliseconds(1);
    return hooks;
  }

  static transport::Connection::Options options() {
    transport::Connection::Options options;
    options.is_resumable = true;
    return options;
  }

 private:
  const Devices devices_{c10::DeviceType::CPU, 1};
  const OperatorTable table_;

 public:
  Session session;
};

// Promise 11.
TEST(SessionLease, ASessionThatHoldsNothingDoesNotWaitForItsLease) {
  auto [theirs, ours] = transport::memory_pair();
  LeasedSession leased(std::move(ours));
  theirs.reset();
  auto run = std::async(std::launch::async, [&] { return leased.session.run(); });
  EXPECT_EQ(run.wait_for(kPatience), std::future_status::ready);
  leased.session.expect_no_return();
  EXPECT_TRUE(run.get());
}

// Promise 11.
TEST(SessionLease, ASessionThatHoldsATensorWaitsForItsClient) {
  auto [theirs, ours] = transport::memory_pair();
  LeasedSession leased(std::move(ours));
  auto run = std::async(std::launch::async, [&] { return leased.session.run(); });
  auto client = std::make_unique<WireClient>(std::move(theirs));
  FrameText frame;
  frame.store(1, {1}).query(2, wire::QueryKind::kBarrier);
  client->send(frame);
  EXPECT_FALSE(client->wait(2).failed);
  client.reset();
  EXPECT_EQ(run.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  leased.session.expect_no_return();
  EXPECT_TRUE(run.get());
}

}  // namespace
}  // namespace torch_remote::server::testing
