#include "server/operators/argument_checks.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "server/operators/operators.h"

namespace torch_remote::server {
namespace {

const c10::FunctionSchema& schema_of(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema();
}

// The call's error; empty: its kernel may run.
std::string refusal(const char* name, const torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = schema_of(name);
  const ArgumentCheck check = argument_check(schema);
  if (check == nullptr)
    return "(no check)";
  try {
    check(schema, stack);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

torch::jit::Stack resampled(c10::IValue scale_h, c10::IValue scale_w, int64_t height = 4) {
  return {at::ones({1, 1, 8, 8}), std::vector<int64_t>{height, 16}, false, std::move(scale_h),
          std::move(scale_w)};
}

// Promise 5b.
TEST(ArgumentChecks, AScaleThatLeadsBeyondTheInputIsRefused) {
  const char* const kNames[] = {"aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa",
                                "aten::upsample_bilinear2d", "aten::upsample_bicubic2d"};
  for (const char* const name : kNames) {
    EXPECT_EQ(refusal(name, resampled({}, {})), "") << name;
    EXPECT_EQ(refusal(name, resampled(0.5, 2.0)), "") << name;
    EXPECT_EQ(refusal(name, resampled(1.7, 4.2)), "") << name;
    EXPECT_EQ(refusal(name, resampled(-1.0, 0.0)), "") << name;  // ignored by kernels
    EXPECT_EQ(refusal(name, resampled(HUGE_VAL, 1e300)), "") << name;
    for (const double scale : {0.49, 0.001, 1e-30, 1e-320, std::nan("")})
      EXPECT_NE(refusal(name, resampled(scale, {})), "") << name << scale;
    EXPECT_NE(refusal(name, resampled({}, 1.9)), "") << name;
  }
}

// Promise 5b.
TEST(ArgumentChecks, RoundingMayNotAddAWholeOutputHoweverLargeTheInput) {
  constexpr int64_t kInput = 100'000'000;
  const torch::jit::Stack stack = {
      at::ones({1}).expand({1, 1, kInput, 8}), std::vector<int64_t>{kInput + 1, 8}, false, 1.0, {}};
  EXPECT_NE(refusal("aten::_upsample_bilinear2d_aa", stack), "");
}

TEST(ArgumentChecks, TheScaleOfAGradientIsCheckedAgainstTheSizesThatItNames) {
  const auto stack = [](double scale) -> torch::jit::Stack {
    return {at::ones({1, 1, 16}), std::vector<int64_t>{16}, std::vector<int64_t>{1, 1, 8}, scale};
  };
  EXPECT_EQ(refusal("aten::upsample_nearest1d_backward", stack(2.0)), "");
  EXPECT_NE(refusal("aten::upsample_nearest1d_backward", stack(1e-3)), "");
}

TEST(ArgumentChecks, ASizeThatRoundingGivesIsAccepted) {
  for (int64_t input = 1; input < 300; ++input) {
    for (const double scale : {0.1, 0.3, 0.7, 1.1, 1.7, 2.5, 3.3}) {
      const auto output = static_cast<int64_t>(std::floor(static_cast<double>(input) * scale));
      const torch::jit::Stack stack = {at::ones({1, 1, input}), std::vector<int64_t>{output},
                                       c10::IValue(scale)};
      EXPECT_EQ(refusal("aten::upsample_nearest1d", stack), "") << input << " " << scale;
    }
  }
}

// Promise 5b.
TEST(ArgumentChecks, EigenvaluesWantFiniteNumbers) {
  EXPECT_EQ(refusal("aten::_linalg_eigvals", {at::ones({3, 3})}), "");
  EXPECT_NE(refusal("aten::_linalg_eigvals", {at::full({3, 3}, HUGE_VAL)}), "");
  EXPECT_NE(refusal("aten::_linalg_eigvals", {at::full({33, 33}, std::nan(""))}), "");
}

// Promise 5b.
TEST(ArgumentChecks, EveryOperatorThatTakesAScaleBesideASizeHasACheck) {
  int checked = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string& text = name.name;
    if (!text.starts_with("aten::") || text.find("upsample_") == text.npos ||
        name.overload_name.starts_with("vec"))  // computes the size itself
      continue;
    EXPECT_NE(argument_check(schema_of(text.c_str(), name.overload_name.c_str())), nullptr) << text;
    ++checked;
  }
  EXPECT_GE(checked, 40);
}

TEST(ArgumentChecks, OtherOperatorsHaveNone) {
  EXPECT_EQ(OperatorTable().find({"aten::relu", "", {}}).check, nullptr);
  EXPECT_NE(OperatorTable().find({"aten::upsample_nearest2d", "", {}}).check, nullptr);
}

}  // namespace
}  // namespace torch_remote::server
