#include "server/listener/excess.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <thread>

#include <sys/resource.h>

namespace torch_remote::server {
namespace {

// Pages that are in memory and that RLIMIT_DATA never counts, such as those of a library that the
// loader has written to and made read-only.
constexpr uint64_t kUncountedBytes = 256 << 20;

struct Use {
  uint64_t threads = 0;
  uint64_t bytes = 0;  // of its own memory and its page tables, in memory or swapped out
};

// From /proc/PID/status, whose sizes are in KiB.
Use use_of(pid_t process) {
  Use use;
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string name, line; status >> name; std::getline(status, line)) {
    uint64_t value = 0;
    if (name == "Threads:" && status >> value)
      use.threads = value;
    else if ((name == "RssAnon:" || name == "RssShmem:" || name == "VmSwap:" || name == "VmPTE:") &&
             status >> value)
      use.bytes += value * 1024;
  }
  return use;
}

// What limit_memory() has set; a session can only lower it.
uint64_t memory_limit_of(pid_t process) {
  rlimit limit{};
  if (::prlimit(process, RLIMIT_DATA, nullptr, &limit) != 0)
    return RLIM_INFINITY;
  return limit.rlim_max;
}

}  // namespace

unsigned most_threads_of_session() {
  constexpr unsigned kFewCores = 16;
  return 16 * std::max(std::thread::hardware_concurrency(), kFewCores);
}

std::string excess_of(pid_t process) {
  const Use use = use_of(process);
  if (const unsigned most = most_threads_of_session(); use.threads > most)
    return "it had " + std::to_string(use.threads) + " threads, and a session may have " +
           std::to_string(most);
  const uint64_t limit = memory_limit_of(process);
  if (use.bytes > kUncountedBytes && use.bytes - kUncountedBytes > limit)
    return "it had " + std::to_string(use.bytes >> 20) + " MiB of memory, and a session may have " +
           std::to_string(limit >> 20);
  return {};
}

}  // namespace torch_remote::server
