#include "server/session/memory_limit.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "server/device/context.h"
#include "server/executor/failures.h"

namespace torch_remote::server {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Whether the claim holds in a process of its own.
bool holds(const std::function<bool()>& claim) {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(claim() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

at::Tensor make(uint64_t bytes) {
  return at::detail::empty_cpu({static_cast<int64_t>(bytes)}, at::kByte, false, std::nullopt);
}

bool is_out_of_memory(uint64_t bytes) {
  try {
    make(bytes);
    return false;
  } catch (...) {
    const wire::Error told = describe_failure(std::current_exception(), "empty");
    return told.kind == wire::ErrorKind::kOutOfMemory;
  }
}

TEST(MemoryLimit, MuchMoreThanTheLimitIsOutOfMemoryAndWhatFitsIsNot) {
  EXPECT_TRUE(holds([] {
    limit_memory(100 * kMiB);
    return is_out_of_memory(2048 * kMiB) && !is_out_of_memory(99 * kMiB) &&
           is_out_of_memory(2048 * kMiB);
  }));
  EXPECT_TRUE(holds([] { return !is_out_of_memory(2048 * kMiB); }));
}

TEST(MemoryLimit, AnUploadAsLargeAsTheLimitFitsBesideItsStorage) {
  EXPECT_TRUE(holds([] {
    limit_memory(2048 * kMiB);
    const at::Tensor storage = make(2047 * kMiB);
    return !is_out_of_memory(2047 * kMiB);
  }));
}

TEST(MemoryLimit, AllThreadsThatAClientMaySetCanBeStartedBesideFullStorages) {
  EXPECT_TRUE(holds([] {
    limit_memory(100 * kMiB);
    const at::Tensor full = make(100 * kMiB);
    at::set_num_threads(most_threads());
    std::atomic<int64_t> sum{0};
    at::parallel_for(0, 1000, 1, [&](int64_t from, int64_t to) { sum += to - from; });
    return sum == 1000;
  }));
}

// Promise 7.
TEST(MemoryLimit, AddressSpaceIsLimitedBecausePageTablesAreNot) {
  constexpr uint64_t kMuch = 1 << 20;  // in MiB; more threads than a machine has need less
  const auto reserves = [] {
    return ::mmap(nullptr, kMuch * kMiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                  0) != MAP_FAILED;
  };
  EXPECT_TRUE(holds(reserves));
  EXPECT_TRUE(holds([&] {
    limit_memory(100 * kMiB);
    return !reserves() && errno == ENOMEM;
  }));
}

TEST(MemoryLimit, ALimitThatCannotBeReachedChangesNothing) {
  EXPECT_TRUE(holds([] {
    limit_memory(UINT64_MAX - 1);
    rlimit limit{};
    ::getrlimit(RLIMIT_DATA, &limit);
    return limit.rlim_cur == RLIM_INFINITY;
  }));
}

TEST(MemoryLimit, ASessionIsEndedBeforeOthersWhereMemoryIsShort) {
  const auto score = [] {
    int read = 0;
    std::ifstream("/proc/self/oom_score_adj") >> read;
    return read;
  };
  const int before = score();
  EXPECT_TRUE(holds([&] {
    end_first_without_memory();
    return score() == std::max(before, 500);
  }));
}

}  // namespace
}  // namespace torch_remote::server
