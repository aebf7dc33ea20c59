#include "client/session/warnings.h"

#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/session_fixture.h"

namespace torch_remote::client::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// What was shown, as "file:line text".
std::vector<std::string>& shown() {
  static std::vector<std::string> all;
  return all;
}

class WarningsTest : public SessionTest {
 protected:
  WarningsTest() {
    shown().clear();
    python_hooks.warn = [](const ShownWarning& warning, const std::string& file, int line, bool) {
      shown().push_back(file + ":" + std::to_string(line) + " " + warning.text);
      return false;
    };
  }

  ~WarningsTest() override { python_hooks.warn = nullptr; }

  // A call at this line.
  uint64_t call_at(int line) {
    Submission at(session);
    const uint64_t call = at.number_call({intern_line({"train.py", line, "step"})}).call;
    encode(at.writer(), wire::Resize{session.order().new_names().storages(), 0, 0});
    return call;
  }

  void warn(uint64_t call, uint64_t number, const std::string& text = "") {
    wire::Warning warning;
    warning.call = call;
    warning.number = number;
    warning.is_new = !text.empty();
    warning.text = text;
    server.send_payload(body_of(warning));
  }

  void wait() {
    const auto request = ask();
    server.reply(request->id);
    session.wait(request, "an answer");
  }
};

TEST_F(WarningsTest, AWaitShowsThemInTheirOrderWithTheLinesOfTheCalls) {
  connect();
  const uint64_t first = call_at(12);
  const uint64_t second = call_at(13);
  warn(first, 1, "careful");
  warn(second, 1);
  EXPECT_THAT(shown(), IsEmpty());
  wait();
  EXPECT_THAT(shown(), ElementsAre("train.py:12 careful", "train.py:13 careful"));
  wait();
  EXPECT_THAT(shown(), SizeIs(2));
}

TEST_F(WarningsTest, AfterAnErrorTheRestIsForTheNextWait) {
  connect();
  python_hooks.warn = [](const ShownWarning& warning, const std::string&, int, bool) {
    shown().push_back(warning.text);
    return true;
  };
  const uint64_t call = call_at(12);
  warn(call, 1, "one");
  warn(call, 2, "two");
  ::testing::internal::CaptureStderr();  // c10's own handler, where Python is not
  wait();
  EXPECT_THAT(shown(), ElementsAre("one"));
  wait();
  EXPECT_THAT(shown(), ElementsAre("one", "two"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("one"));
}

TEST_F(WarningsTest, AThreadIsShownItsOwnAndSynchronizeShowsAll) {
  connect();
  uint64_t call = 0;
  std::promise<void> has_called;
  std::promise<void> may_end;
  std::thread other([&] {
    call = call_at(20);
    has_called.set_value();
    may_end.get_future().wait();
  });
  has_called.get_future().wait();
  warn(call, 1, "careful");
  wait();
  EXPECT_THAT(shown(), IsEmpty());
  auto error =
      std::async(std::launch::async, [&] { return error_of([&] { session.synchronize(); }); });
  server.reply(server.wait_for_messages(3).back().number);
  EXPECT_EQ(error.get(), "(no error)");
  EXPECT_THAT(shown(), ElementsAre("train.py:20 careful"));
  warn(call, 1);
  may_end.set_value();
  other.join();
  wait();
  EXPECT_THAT(shown(), SizeIs(2));
}

TEST_F(WarningsTest, OneLineIsKeptSoManyTimesAndAllTogetherSoMany) {
  connect();
  const uint64_t call = call_at(12);
  warn(call, 1, "text");
  for (int i = 0; i < 200; ++i)
    warn(call, 1);
  wait();
  EXPECT_THAT(shown(), SizeIs(128));
  shown().clear();
  for (int line = 0; line < 1100; ++line)
    warn(call_at(1000 + line), 1);
  ::testing::internal::CaptureStderr();
  wait();
  EXPECT_THAT(shown(), SizeIs(1024));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("76 more warnings"));
}

TEST_F(WarningsTest, WhatTheClientHasWarnedOfItselfIsNotShown) {
  connect();
  warn(call_at(12), 1, "put_ does not have a deterministic implementation, but you set …");
  wait();
  EXPECT_THAT(shown(), IsEmpty());
}

TEST_F(WarningsTest, ACallThatWasNotMadeEndsTheSession) {
  connect();
  warn(99, 1, "careful");
  EXPECT_THAT(wait_for_the_end(), HasSubstr("a call that was not made"));
}

TEST_F(WarningsTest, ATextThatWasNotSentEndsTheSession) {
  connect();
  warn(call_at(12), 1);
  EXPECT_THAT(wait_for_the_end(), HasSubstr("a text that it has not sent"));
}

TEST_F(WarningsTest, ATextOutOfOrderEndsTheSession) {
  connect();
  warn(call_at(12), 2, "careful");
  EXPECT_THAT(wait_for_the_end(), HasSubstr("out of order"));
}

}  // namespace
}  // namespace torch_remote::client::testing
