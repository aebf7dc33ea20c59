#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>

#include <fcntl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/call_filter.h"
#include "base/error.h"

namespace torch_remote {
namespace {

// Of <linux/openat2.h>, which older systems lack.
constexpr long kOpenat2Call = 437;

struct HowToOpen {
  uint64_t flags = 0;
  uint64_t mode = 0;
  uint64_t resolve = 0;
};

struct Registers {
  std::array<uint64_t, 4> arguments{};
  void* result = nullptr;
};

Registers registers_of(ucontext_t& context) {
#if defined(__x86_64__)
  auto& all = context.uc_mcontext.gregs;
  return {{static_cast<uint64_t>(all[REG_RDI]), static_cast<uint64_t>(all[REG_RSI]),
           static_cast<uint64_t>(all[REG_RDX]), static_cast<uint64_t>(all[REG_R10])},
          &all[REG_RAX]};
#elif defined(__aarch64__)
  auto& all = context.uc_mcontext.regs;
  return {{all[0], all[1], all[2], all[3]}, &all[0]};
#else
  return {};
#endif
}

struct OpenCall {
  int folder = AT_FDCWD;
  const char* path = nullptr;
  uint64_t flags = 0;
  uint64_t mode = 0;
};

const char* text_at(uint64_t address) {
  return reinterpret_cast<const char*>(address);  // NOLINT(performance-no-int-to-ptr): a register
}

// No path: it opens nothing.
OpenCall open_call_of(int call, const std::array<uint64_t, 4>& arguments) {
  if (call == SYS_openat)
    return {static_cast<int>(arguments[0]), text_at(arguments[1]), arguments[2], arguments[3]};
#ifdef SYS_open
  if (call == SYS_open)
    return {AT_FDCWD, text_at(arguments[0]), arguments[1], arguments[2]};
#endif
  return {};
}

long open_file(const OpenCall& wanted) {
  // Other than open(), openat2() refuses a mode where no file is made.
  const HowToOpen how{wanted.flags, (wanted.flags & O_CREAT) != 0 ? wanted.mode & 07777 : 0, 0};
  const long opened = ::syscall(kOpenat2Call, wanted.folder, wanted.path, &how, sizeof how);
  return opened < 0 ? -errno : opened;
}

// Calls only what a signal's handler may, but for snprintf(), which allocates nothing for these
// formats.
void on_refused_call(int, siginfo_t* info, void* context) {
  const int kept = errno;
  const Registers registers = registers_of(*static_cast<ucontext_t*>(context));
  const OpenCall wanted = open_call_of(info->si_syscall, registers.arguments);
  const long result =
      info->si_errno == 0 && wanted.path != nullptr ? open_file(wanted) : -info->si_errno;
  if (result == -EACCES || result == -EPERM) {
    std::array<char, 400> text{};
    const int length = std::snprintf(
        text.data(), text.size(), "sandbox refused system call %d (%#lx, %#lx, %#lx) %.200s\n",
        info->si_syscall, static_cast<unsigned long>(registers.arguments[0]),
        static_cast<unsigned long>(registers.arguments[1]),
        static_cast<unsigned long>(registers.arguments[2]),
        wanted.path == nullptr ? "" : wanted.path);
    (void)!::write(STDERR_FILENO, text.data(), static_cast<size_t>(length));
  }
  *static_cast<int64_t*>(registers.result) = result;
  errno = kept;
}

}  // namespace

void trace_refused_calls() {
  struct sigaction action {};

  action.sa_sigaction = on_refused_call;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (::sigaction(SIGSYS, &action, nullptr) != 0)
    throw_system_errno("sigaction", errno);
}

}  // namespace torch_remote
