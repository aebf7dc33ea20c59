#include "server/session/warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/support.h"
#include "wire/limits.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Warnings that are sent for a session without a connection.
class WarningsTest : public ::testing::Test {
 protected:
  std::vector<wire::Warning> sent() {
    const std::vector<std::byte> bytes = server.replies.take();
    std::vector<wire::Warning> all;
    for (wire::Reader reader(bytes); !reader.empty();) {
      wire::ReceivedMessage message = wire::next_message(reader);
      if (message.tag == wire::Tag::kWarning)
        all.push_back(wire::decode_warning(message.body));
    }
    return all;
  }

  static c10::Warning warning(const std::string& text, bool is_deprecation = false) {
    c10::Warning::warning_variant_t type = c10::UserWarning();
    if (is_deprecation)
      type = c10::DeprecationWarning();
    return {type, {"function", "Kernel.cpp", 12}, text, false};
  }

  Server server;
  Warnings warnings{&server.replies, server.interpreter};
};

TEST_F(WarningsTest, AWarningHasTheNumberOfTheCallThatRunsAndPyTorchsWords) {
  server.apply(FrameText().store(1, {1, 2}));
  warnings.process(warning("careful"));
  warnings.process(warning("old", true));
  const auto all = sent();
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all[0].call, 2);
  EXPECT_EQ(all[0].text, "careful (Triggered internally at Kernel.cpp:12.)");
  EXPECT_EQ(all[0].category, wire::WarningCategory::kUser);
  EXPECT_EQ(all[1].category, wire::WarningCategory::kDeprecation);
}

TEST_F(WarningsTest, ATextIsSentOnceAndEveryCallThatWarnsHasItsNumber) {
  for (int i = 0; i < 3; ++i)
    warnings.process(warning(i == 1 ? "two" : "one"));
  const auto all = sent();
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_THAT((std::vector{all[0].is_new, all[1].is_new, all[2].is_new}),
              ElementsAre(true, true, false));
  EXPECT_THAT((std::vector{all[0].number, all[1].number, all[2].number}), ElementsAre(1, 2, 1));
}

TEST_F(WarningsTest, ASessionWithTooManyTextsIsToldOnceThatTheRestIsLeftOut) {
  for (uint64_t i = 0; i < wire::kMaxWarningTexts + 10; ++i)
    warnings.process(warning("text " + std::to_string(i)));
  warnings.process(warning("text 0"));
  const auto all = sent();
  ASSERT_THAT(all, SizeIs(wire::kMaxWarningTexts + 1));
  EXPECT_THAT(all[wire::kMaxWarningTexts - 1].text, HasSubstr("leaves out"));
  EXPECT_EQ(all.back().number, 1);
}

TEST_F(WarningsTest, AClientThatDoesNotTakeWarningsGetsNone) {
  Warnings logged{nullptr, server.interpreter};
  ::testing::internal::CaptureStderr();
  logged.process(warning("careful"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("careful"));
  EXPECT_THAT(sent(), SizeIs(0));
}

TEST_F(WarningsTest, WhatTheClientKeepsInAnotherWayIsNotWarnedOf) {
  warnings.process(warning("RNN module weights are not part of single contiguous chunk of memory"));
  EXPECT_THAT(sent(), SizeIs(0));
}

}  // namespace
}  // namespace torch_remote::server::testing
