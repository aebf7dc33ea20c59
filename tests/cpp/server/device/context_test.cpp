#include "server/device/context.h"

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>

#include "wire/spec.h"

namespace torch_remote::server {
namespace {

using wire::Setting;

void set(Setting setting, int64_t value) {
  apply_context({{{setting, value}}});
}

TEST(Context, FlagsAreSetAndTakenBack) {
  set(Setting::kDeterministic, 2);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  set(Setting::kDeterministic, 0);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  set(Setting::kMathSdp, 0);
  EXPECT_FALSE(at::globalContext().userEnabledMathSDP());
  set(Setting::kMathSdp, 1);
  EXPECT_TRUE(at::globalContext().userEnabledMathSDP());
}

TEST(Context, TheDefaultDtypeIsTheClients) {
  set(Setting::kDefaultDtype, static_cast<int64_t>(wire::Dtype::kFloat64));
  EXPECT_EQ(c10::get_default_dtype_as_scalartype(), at::kDouble);
  set(Setting::kDefaultDtype, static_cast<int64_t>(wire::Dtype::kFloat32));
  EXPECT_EQ(c10::get_default_dtype_as_scalartype(), at::kFloat);
}

TEST(Context, ThreadsAreTheClientsWithinReason) {
  const int before = at::get_num_threads();
  set(Setting::kThreads, 1);
  EXPECT_EQ(at::get_num_threads(), 1);
  set(Setting::kThreads, -5);
  EXPECT_EQ(at::get_num_threads(), 1);
  set(Setting::kThreads, before);
}

// Promise 7.
TEST(Context, ThreadsAreTheServersToLimit) {
  const int before = at::get_num_threads();
  for (const int64_t wanted : {int64_t{most_threads()} + 1, int64_t{1024}, INT64_MAX}) {
    set(Setting::kThreads, 1);
    set(Setting::kThreads, wanted);
    EXPECT_EQ(at::get_num_threads(), most_threads()) << wanted;
  }
  EXPECT_GE(most_threads(), 16);
  EXPECT_LE(most_threads(), std::max(16U, 2 * std::thread::hardware_concurrency()));
  set(Setting::kThreads, before);
}

TEST(Context, ReductionsKeepTheirThreeChoices) {
  using Option = at::CuBLASReductionOption;
  for (const Option option :
       {Option::DisallowReducedPrecisionAllowSplitK, Option::DisallowReducedPrecisionDisallowSplitK,
        Option::AllowReducedPrecisionWithSplitK}) {
    set(Setting::kFp16Reduction, static_cast<int64_t>(option));
    EXPECT_EQ(at::globalContext().allowFP16ReductionCuBLAS(), option);
  }
}

TEST(Context, AnOrderOfAttentionBackendsMustNameEachOnce) {
  const auto before = at::globalContext().sDPPriorityOrder();
  set(Setting::kSdpOrder, 011111);
  EXPECT_EQ(at::globalContext().sDPPriorityOrder(), before);
  set(Setting::kSdpOrder, 043021);
  EXPECT_EQ(at::globalContext().sDPPriorityOrder()[0], at::SDPBackend::flash_attention);
  EXPECT_EQ(at::globalContext().sDPPriorityOrder()[4], at::SDPBackend::overrideable);
}

TEST(Context, PrecisionsAreSetOneByOne) {
  at::Context& context = at::globalContext();
  set(Setting::kMatmulPrecision, 2);
  EXPECT_EQ(context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL),
            at::Float32Precision::NONE);
  set(Setting::kMkldnnPrecision, 3);
  EXPECT_EQ(context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL),
            at::Float32Precision::BF16);
  set(Setting::kMkldnnPrecision, 0);
  set(Setting::kMatmulPrecision, 0);
}

TEST(Context, EverySettingIsHandledAndNoValueIsFatal) {
  for (uint8_t i = 1; i <= wire::kMaxSetting; ++i) {
    for (const int64_t value : {int64_t{-1}, int64_t{99}, INT64_MIN, INT64_MAX}) {
      if (static_cast<Setting>(i) == Setting::kThreads)
        continue;
      EXPECT_NO_THROW(set(static_cast<Setting>(i), value));
    }
  }
}

}  // namespace
}  // namespace torch_remote::server
