#include "server/listener/metrics.h"

#include <string>

#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

// Promise 4.
TEST(Metrics, NamesThatSessionsInventAreLimited) {
  OperatorTimes times;
  for (int i = 0; i < 10'000; ++i)
    times.add({{"invented::" + std::to_string(i), 1, 1}});

  EXPECT_LE(times.size(), OperatorTimes::kMaxNames + 1);
  ASSERT_EQ(times.longest(1).at(0).name, "others");
  EXPECT_GE(times.longest(1).at(0).calls, 5'000U);
}

}  // namespace
}  // namespace torch_remote::server
