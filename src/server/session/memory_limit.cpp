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
// Address space that is reserved and not used. An arena of glibc's malloc() reserves 64 MiB, and
// twice that for a moment.
constexpr uint64_t kReservedByThread = 128 << 20;
constexpr uint64_t kReservedElse = uint64_t{16} << 30;

// A size of /proc/self/status, where it is in KiB. "VmData:" is what RLIMIT_DATA counts, as far as
// it is used, "VmSize:" what RLIMIT_AS counts. 0: it is not there.
uint64_t present(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name))
      return std::stoull(line.substr(name.size())) * 1024;
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
uint64_t threads() {
  return 2 * static_cast<uint64_t>(most_threads()) + kOtherThreads;
}

void lower(__rlimit_resource resource, uint64_t most) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  const rlim_t bytes = std::min<rlim_t>(limit.rlim_max, most);
  limit = {bytes, bytes};
  if (::setrlimit(resource, &limit) != 0)
    throw_system_errno("setrlimit", errno);
}

}  // namespace

void limit_memory(uint64_t max_memory) {
  const uint64_t data = present("VmData:");
  const uint64_t mapped = present("VmSize:");
  if (data == 0 || mapped == 0) {
    log(LogLevel::kWarning, "without /proc the kernel does not keep --max-memory");
    return;
  }
  const uint64_t allowance = threads() * stack_size() + kForMessages;
  const uint64_t reserved = allowance + threads() * kReservedByThread + kReservedElse;
  if (max_memory > (RLIM_INFINITY - mapped - reserved) / 2)
    return;
  lower(RLIMIT_DATA, 2 * max_memory + data + allowance);
  lower(RLIMIT_AS, 2 * max_memory + mapped + reserved);
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
