#include "server/groups/sends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace torch_remote::server {
namespace {

using ::testing::HasSubstr;

// A send that has arrived, or never does. Counts those that are waited for.
class Sent : public c10d::Work {
 public:
  Sent(int& waited, bool arrives) : waited_(waited), arrives_(arrives) {}

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    ++waited_;
    TORCH_CHECK(arrives_, "Timed out");
    return true;
  }

 private:
  int& waited_;
  const bool arrives_;
};

class SendsTest : public ::testing::Test {
 protected:
  void send(uint64_t bytes, bool arrives = true, const Group* group = nullptr) {
    sends.make_room(bytes);
    sends.add(group, c10::make_intrusive<Sent>(waited, arrives), bytes);
  }

  Sends sends;
  int waited = 0;
};

TEST_F(SendsTest, OneTensorOverTheLimitIsNotWaitedFor) {
  send(Sends::kMostBytes + 1);
  EXPECT_EQ(waited, 0);
  send(1);
  EXPECT_EQ(waited, 1);
}

TEST_F(SendsTest, OneMoreThanTheLimitWaitsForTheOldest) {
  for (size_t i = 0; i < Sends::kMost; ++i)
    send(1);
  EXPECT_EQ(waited, 0);
  send(1);
  EXPECT_EQ(waited, 1);
  send(Sends::kMostBytes);
  EXPECT_EQ(waited, 1 + static_cast<int>(Sends::kMost));
}

TEST_F(SendsTest, AnErrorNamesTheLimit) {
  send(Sends::kMostBytes, false);
  try {
    send(1);
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("at most 64 tensors or 256 MiB at a time"));
    EXPECT_THAT(error.what(), HasSubstr("Timed out"));
  }
  send(1);  // the one that failed is gone
  EXPECT_EQ(waited, 1);
}

TEST_F(SendsTest, AGroupThatClosesWaitsForItsOwnUntilOneFails) {
  int place = 0;
  const auto* const other = reinterpret_cast<const Group*>(&place);  // is only compared
  send(1);
  send(1, true, other);
  send(1, false);
  send(1);
  sends.finish(nullptr);
  EXPECT_EQ(waited, 2);
  sends.finish(other);
  EXPECT_EQ(waited, 3);
}

}  // namespace
}  // namespace torch_remote::server
