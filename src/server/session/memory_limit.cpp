#include "server/session/memory_limit.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

#include <pthread.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/log.h"
#include "server/device/context.h"

namespace torch_remote::server {
namespace {

constexpr uint64_t kForMessages = 128 << 20;  // and workspaces that do not grow with tensors
constexpr unsigned kOtherThreads = 16;        // of the session itself, and of libraries

// What RLIMIT_DATA counts, as far as it is used: VmData of /proc/self/status, in KiB there.
uint64_t present_data() {
  constexpr std::string_view kName = "VmData:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kName))
      return std::stoull(line.substr(kName.size())) * 1024;
  return 0;
}

uint64_t stack_size() {
  pthread_attr_t attributes;
  size_t bytes = 8 << 20;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &bytes);
    ::pthread_attr_destroy(&attributes);
  }
  return bytes;
}

// OpenMP and XNNPACK have a pool each.
uint64_t stacks() {
  return (2 * static_cast<uint64_t>(most_threads()) + kOtherThreads) * stack_size();
}

}  // namespace

void limit_memory(uint64_t max_memory) {
  const uint64_t present = present_data();
  if (present == 0) {
    log(LogLevel::kWarning, "without /proc the kernel does not keep --max-memory");
    return;
  }
  const uint64_t allowance = present + stacks() + kForMessages;
  if (max_memory > (RLIM_INFINITY - allowance) / 2)
    return;
  rlimit limit{};
  ::getrlimit(RLIMIT_DATA, &limit);
  const rlim_t bytes = std::min<rlim_t>(limit.rlim_max, 2 * max_memory + allowance);
  limit = {bytes, bytes};
  if (::setrlimit(RLIMIT_DATA, &limit) != 0)
    throw_system_errno("setrlimit", errno);
}

void end_first_without_memory() noexcept {
  constexpr int kScore = 500;  // of 1000
  try {
    std::fstream score("/proc/self/oom_score_adj");
    int present = 0;
    score >> present;
    if (present >= kScore)
      return;
    score.clear();
    score.seekp(0);
    score << kScore << std::flush;
  } catch (const std::exception&) {
    // Without /proc the kernel decides by size alone.
  }
}

}  // namespace torch_remote::server
