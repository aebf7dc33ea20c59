#include "client/context.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

namespace torch_remote::client {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using wire::Setting;
using wire::SettingValue;

// Puts back what the tests change.
class ContextTest : public testing::Test {
 protected:
  ~ContextTest() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
    c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
  }

  const ContextValues before = read_context();
};

TEST_F(ContextTest, TheFirstDifferenceHasEverySettingOnce) {
  const wire::Context first = difference(unsent_context(), before);
  std::vector<Setting> settings;
  for (const SettingValue& value : first.settings)
    settings.push_back(value.setting);
  EXPECT_TRUE(std::ranges::is_sorted(settings));
  EXPECT_EQ(std::ranges::adjacent_find(settings), settings.end());
  for (uint8_t number = 1; number <= wire::kMaxSetting; ++number) {
    const auto setting = static_cast<Setting>(number);
    if (setting == Setting::kBlasBackend)
      continue;  // asking for it would initialise CUDA
    EXPECT_TRUE(std::ranges::count(settings, setting)) << "setting " << int{number};
  }
}

TEST_F(ContextTest, NothingIsSentWhileNothingChanges) {
  EXPECT_THAT(difference(before, read_context()).settings, IsEmpty());
}

TEST_F(ContextTest, OnlyWhatChangedIsSent) {
  at::globalContext().setDeterministicAlgorithms(true, true);
  const ContextValues now = read_context();
  EXPECT_THAT(difference(before, now).settings,
              ElementsAre(SettingValue{Setting::kDeterministic, 2}));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_THAT(difference(now, read_context()).settings,
              ElementsAre(SettingValue{Setting::kDeterministic, 1}));
}

TEST_F(ContextTest, WhatIsChangedBackIsSentAgain) {
  at::globalContext().setDeterministicAlgorithms(true, false);
  const ContextValues now = read_context();
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_THAT(difference(now, read_context()).settings,
              ElementsAre(SettingValue{Setting::kDeterministic, 0}));
}

TEST_F(ContextTest, TheDefaultDtypeIsPartOfTheContextAndOfTheKey) {
  const uint8_t environment = read_environment();
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  EXPECT_THAT(difference(before, read_context()).settings,
              ElementsAre(SettingValue{Setting::kDefaultDtype,
                                       static_cast<int64_t>(wire::Dtype::kFloat64)}));
  EXPECT_NE(read_environment(), environment);
}

TEST_F(ContextTest, WhatDecidesMetadataIsPartOfTheKey) {
  const uint8_t environment = read_environment();
  at::globalContext().setDeterministicAlgorithms(true, false);
  const uint8_t deterministic = read_environment();
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  EXPECT_NE(deterministic, environment);
  EXPECT_NE(read_environment(), deterministic);
}

}  // namespace
}  // namespace torch_remote::client
