#include "base/session_page.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"

namespace torch_remote {
namespace {

TEST(SessionPage, ANewOneHasNoCallsAndNoFigures) {
  const SessionPage& page = SessionPage::make_private();
  EXPECT_EQ(page.last_calls(), "");
  EXPECT_EQ(page.figures().calls, 0U);
}

TEST(SessionPage, TheLastCallsComeOldestFirst) {
  SessionPage& page = SessionPage::make_private();
  for (uint64_t number = 1; number <= 100; ++number)
    page.note_call(number, "aten::op" + std::to_string(number));

  EXPECT_EQ(page.last_calls(2), "call 99 aten::op99, call 100 aten::op100");
  EXPECT_EQ(page.last_calls().substr(0, 19), "call 37 aten::op37,");
}

TEST(SessionPage, ALongNameIsCutAndWhatCannotBePrintedIsNot) {
  SessionPage& page = SessionPage::make_private();
  page.note_call(1, std::string(1000, 'x'));
  page.note_call(2, "a\nb\x01");

  EXPECT_EQ(page.last_calls(), "call 1 " + std::string(56, 'x') + ", call 2 a?b?");
}

TEST(SessionPage, TimesAreSummedByOperator) {
  SessionPage& page = SessionPage::make_private();
  const size_t mm = page.add_operator("aten::mm");
  page.add_operator("aten::never_called");
  page.note_time(mm, 30);
  page.note_time(mm, 12);

  ASSERT_EQ(page.operator_times().size(), 1U);
  EXPECT_EQ(page.operator_times()[0].name, "aten::mm");
  EXPECT_EQ(page.operator_times()[0].calls, 2U);
  EXPECT_EQ(page.operator_times()[0].nanoseconds, 42U);
}

TEST(SessionPage, MoreOperatorsThanThereArePlacesShareTheLast) {
  SessionPage& page = SessionPage::make_private();
  for (size_t i = 0; i < SessionPage::kOperators + 9; ++i)
    page.note_time(page.add_operator("aten::op" + std::to_string(i)), 1);

  const auto times = page.operator_times();
  ASSERT_EQ(times.size(), SessionPage::kOperators);
  EXPECT_EQ(times.back().name, "others");
  EXPECT_EQ(times.back().calls, 10U);
}

TEST(SessionPage, FactsAreThereOnceTheyWereNoted) {
  SessionPage& page = SessionPage::make_private();
  EXPECT_EQ(page.facts().started, 0U);
  page.note_facts({"pid 7, uid 0", std::string(1000, 'g'), "seccomp", 2, 1024, 5});

  EXPECT_EQ(page.facts().peer, "pid 7, uid 0");
  EXPECT_EQ(page.facts().device, std::string(SessionPage::kFactBytes, 'g'));
  EXPECT_EQ(page.facts().sandbox, "seccomp");
  EXPECT_EQ(page.facts().device_memory, 1024U);
  EXPECT_EQ(page.facts().started, 5U);
}

// Promise 12.
TEST(SessionPage, WhatAKilledProcessWroteCanBeRead) {
  const Fd memory = SessionPage::make_memory();
  const SessionPage& page = SessionPage::map(memory);
  const pid_t pid = ::fork();
  if (pid == 0) {
    SessionPage& theirs = SessionPage::map(memory);
    theirs.note_call(1, "aten::mm");
    theirs.publish({.calls = 1, .memory = 64});
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);

  EXPECT_EQ(describe_kill(status), "killed by signal 9 (Killed)");
  EXPECT_EQ(page.last_calls(), "call 1 aten::mm");
  EXPECT_EQ(page.figures().memory, 64U);
}

TEST(SessionPage, AProcessThatEndedByItselfHasFailedIfItsStatusIsNotZero) {
  const auto ended = [](int exit_status) {
    const pid_t pid = ::fork();
    if (pid == 0)
      ::_exit(exit_status);
    int status = 0;
    ::waitpid(pid, &status, 0);
    return status;
  };

  EXPECT_EQ(describe_failure(ended(255)), "ended with exit status 255");
  EXPECT_EQ(describe_failure(ended(0)), "");
  EXPECT_EQ(describe_kill(ended(255)), "");
  EXPECT_EQ(describe_failure(SIGKILL), "");
}

TEST(SessionPage, TheFirstReasonForItsEndIsKeptAndCut) {
  SessionPage& page = SessionPage::make_private();
  EXPECT_EQ(page.end(), "");

  page.note_end(std::string(1000, 'x'));
  page.note_end("another");

  EXPECT_EQ(page.end(), std::string(300, 'x'));
}

// Fills the whole page, as somebody who has taken the session over may.
// Promise 4.
TEST(SessionPage, WhateverIsWrittenThereIsReadWithinBounds) {
  const Fd memory = SessionPage::make_memory();
  const SessionPage::View page = SessionPage::view(memory);
  SessionPage& theirs = SessionPage::map(memory);
  for (const int byte : {0xff, 0x7f, 0x80, 0x78, 0x22}) {
    std::memset(static_cast<void*>(&theirs), byte, sizeof(SessionPage));

    EXPECT_LE(page->last_calls().size(), SessionPage::kCalls * (SessionPage::kNameBytes + 32));
    EXPECT_LE(page->end().size(), SessionPage::kReasonBytes);
    EXPECT_LE(page->facts().peer.size(), SessionPage::kFactBytes);
    EXPECT_LE(page->facts().device.size(), SessionPage::kFactBytes);
    EXPECT_LE(page->facts().sandbox.size(), SessionPage::kFactBytes);
    EXPECT_LE(page->operator_times().size(), SessionPage::kOperators);
    for (const SessionPage::OperatorTime& one : page->operator_times())
      EXPECT_LE(one.name.size(), SessionPage::kNameBytes);
  }
}

// Promise 4.
TEST(SessionPage, ItsMemoryCannotBeTakenAwayFromItsReader) {
  const Fd memory = SessionPage::make_memory();
  EXPECT_NE(::ftruncate(memory.get(), 0), 0);
  EXPECT_EQ(errno, EPERM);
}

TEST(SessionPage, MemoryThatIsTooSmallIsRefused) {
  const Fd memory = shared_memory("small", 8);
  EXPECT_THROW(SessionPage::map(memory), std::system_error);
}

}  // namespace
}  // namespace torch_remote
