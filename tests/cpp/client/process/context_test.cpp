#include "client/process/context.h"

#include <vector>

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

  // What the server is told before a call now.
  std::vector<SettingValue> changes() {
    wire::Writer writer;
    mirror_.append_changes(writer);
    if (writer.empty())
      return {};
    wire::Reader reader(writer.view());
    wire::ReceivedMessage message = wire::next_message(reader);
    EXPECT_EQ(message.tag, wire::Tag::kContext);
    return wire::decode_context(message.body).settings;
  }

 private:
  ContextMirror mirror_;
};

TEST_F(ContextTest, TheFirstCallTellsEverySettingOnce) {
  const std::vector<SettingValue> first = changes();
  ASSERT_EQ(first.size(), wire::kMaxSetting);
  for (uint8_t i = 0; i < wire::kMaxSetting; ++i)
    EXPECT_EQ(first[i].setting, static_cast<Setting>(i + 1));
}

TEST_F(ContextTest, NothingIsSentWhileNothingChanges) {
  changes();
  EXPECT_THAT(changes(), IsEmpty());
}

TEST_F(ContextTest, OnlyWhatChangedIsSent) {
  changes();
  at::globalContext().setDeterministicAlgorithms(true, true);
  EXPECT_THAT(changes(), ElementsAre(SettingValue{Setting::kDeterministic, 2}));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_THAT(changes(), ElementsAre(SettingValue{Setting::kDeterministic, 1}));
}

TEST_F(ContextTest, WhatIsChangedBackIsSentAgain) {
  at::globalContext().setDeterministicAlgorithms(true, false);
  changes();
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_THAT(changes(), ElementsAre(SettingValue{Setting::kDeterministic, 0}));
}

TEST_F(ContextTest, TheDefaultDtypeIsPartOfTheContextAndOfTheKey) {
  changes();
  const uint8_t environment = read_environment();
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  EXPECT_THAT(changes(), ElementsAre(SettingValue{Setting::kDefaultDtype,
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
