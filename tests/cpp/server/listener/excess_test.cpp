#include "server/listener/excess.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/platform.h"

namespace torch_remote::server {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// What is said of a process of its own that has done this.
std::string excess_after(const std::function<void()>& action) {
  auto [reader, writer] = pipe_pair();
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::write(writer.get(), "", 1);
    while (true)
      ::pause();
  }
  writer.reset();
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
  std::string excess = excess_of(child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return excess;
}

// Beside what this process, in which other tests may have run, has already.
void limit_data(uint64_t bytes) {
  uint64_t pages = 0;
  std::string skipped;
  std::ifstream statm("/proc/self/statm");  // the sixth number is of data
  for (int i = 0; i < 5; ++i)
    statm >> skipped;
  statm >> pages;
  const uint64_t all = bytes + pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const rlimit limit{all, all};
  ::setrlimit(RLIMIT_DATA, &limit);
}

// Memory that RLIMIT_DATA does not count any more.
void take_memory(uint64_t bytes) {
  constexpr uint64_t kStep = 8 * kMiB;
  for (uint64_t taken = 0; taken < bytes; taken += kStep) {
    void* const made =
        ::mmap(nullptr, kStep, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(made, MAP_FAILED);
    std::memset(made, 1, kStep);
    ::mprotect(made, kStep, PROT_READ);
  }
}

// Page tables of memory that has no pages of its own: one of 4 KiB for each 2 MiB.
void take_page_tables(uint64_t bytes) {
  constexpr uint64_t kReach = 2 * kMiB;
  constexpr uint64_t kStep = 256 * kReach;  // whose page tables have 1 MiB
  for (uint64_t taken = 0; taken < bytes; taken += kMiB) {
    void* const made =
        ::mmap(nullptr, kStep, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(made, MAP_FAILED);
    ::madvise(made, kStep, MADV_NOHUGEPAGE);
    for (uint64_t at = 0; at < kStep; at += kReach)
      static_cast<void>(static_cast<const volatile char*>(made)[at]);
  }
}

// Promise 7.
TEST(Excess, MemoryThatTheKernelsLimitDoesNotCountIsSeen) {
  EXPECT_EQ(excess_after([] { limit_data(512 * kMiB); }), "");
  EXPECT_THAT(excess_after([] {
                limit_data(512 * kMiB);
                take_memory(1024 * kMiB);
              }),
              HasSubstr("MiB of memory, and a session may have "));
}

// Promise 7.
TEST(Excess, PageTablesAreSeen) {
  EXPECT_THAT(excess_after([] {
                limit_data(512 * kMiB);
                take_page_tables(1024 * kMiB);
              }),
              HasSubstr("MiB of memory, and a session may have "));
}

TEST(Excess, WithoutALimitMemoryIsNoExcess) {
  EXPECT_EQ(excess_after([] { take_memory(512 * kMiB); }), "");
}

// Promise 7.
TEST(Excess, TooManyThreadsAreSeen) {
  const auto threads = [](unsigned count) {
    return excess_after([count] {
      for (unsigned i = 1; i < count; ++i)  // the child has one already
        std::thread([] {
          while (true)
            ::pause();
        }).detach();
    });
  };
  EXPECT_EQ(threads(most_threads_of_session()), "");
  EXPECT_THAT(threads(most_threads_of_session() + 1), HasSubstr("threads, and a session may have"));
}

TEST(Excess, AProcessThatHasEndedHasNone) {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(excess_of(child), "");
}

}  // namespace
}  // namespace torch_remote::server
