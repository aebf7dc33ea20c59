#include "server/executor/outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::HasSubstr;

const c10::Device kCpu(c10::kCPU);
// Stands for the GPU of a session: values can be copied there and not read.
const c10::Device kElsewhere(c10::kMeta);

// Promise 5a.
TEST(Outputs, AnOutputThatLiesOnAnotherDeviceIsCopiedToTheCalls) {
  const at::Tensor moved = own_output(at::zeros({2, 3}), kElsewhere);
  EXPECT_EQ(moved.device(), kElsewhere);
  EXPECT_EQ(moved.sizes(), c10::IntArrayRef({2, 3}));

  const Matched matched = match_output(at::zeros({2, 3}), spec({2, 3}), kElsewhere);
  EXPECT_EQ(matched.tensor.device(), kElsewhere);
  EXPECT_THAT(matched.difference, HasSubstr("on another device"));
}

// Promise 5a.
TEST(Outputs, AScalarOfTheCpuStaysThere) {
  at::Tensor seed = at::scalar_tensor(7.0F);
  const void* const memory = seed.const_data_ptr();
  const at::Tensor kept = own_output(std::move(seed), kElsewhere);
  EXPECT_EQ(kept.device(), kCpu);
  EXPECT_EQ(kept.const_data_ptr(), memory);

  const at::Tensor shared = at::arange(3.0F);
  const at::Tensor copied = own_output(shared[1], kElsewhere);
  EXPECT_EQ(copied.device(), kCpu);
  EXPECT_EQ(copied.item<float>(), 1.0F);

  const Matched matched = match_output(at::scalar_tensor(7.0F), spec({}), kElsewhere);
  EXPECT_EQ(matched.tensor.device(), kCpu);
  EXPECT_EQ(matched.difference, "");
}

TEST(Outputs, AnOutputOnTheCallsDeviceIsTakenAsItIs) {
  at::Tensor output = at::zeros({4});
  const void* const memory = output.const_data_ptr();
  EXPECT_EQ(own_output(std::move(output), kCpu).const_data_ptr(), memory);
}

}  // namespace
}  // namespace torch_remote::server::testing
