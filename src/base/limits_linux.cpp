// What a process gives up for ever: capabilities and descriptors.
#include <algorithm>
#include <array>
#include <cerrno>

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/platform.h"

namespace torch_remote {

// The bounding set first: what changes it is a capability too.
void give_up_capabilities() noexcept {
  constexpr unsigned long kMostCapabilities = 64;
  for (unsigned long one = 0; one < kMostCapabilities; ++one)
    if (::prctl(PR_CAPBSET_DROP, one, 0, 0, 0) != 0 && errno == EINVAL)
      break;  // the kernel knows no more of them
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const std::array<__user_cap_data_struct, 2> none{};
  ::syscall(SYS_capset, &header, none.data());
}

void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void lower_descriptor_limit() noexcept {
  constexpr rlim_t kMost = 1024;
  constexpr rlim_t kLeast = 128;  // a session without CUDA has some 50
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return;
  const rlim_t few = std::clamp(limit.rlim_max / 4, kLeast, kMost);
  limit.rlim_max = std::min(limit.rlim_max, few);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace torch_remote
