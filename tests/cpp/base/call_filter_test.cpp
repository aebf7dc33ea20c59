#include "base/call_filter.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/landlock.h"
#include "base/platform.h"

namespace torch_remote {
namespace {

using Action = std::function<long()>;  // as a system call: below 0, errno says why

// Runs the action in a process of its own, behind the filter. Returns its errno; 0: it succeeded.
int error_of(const Action& action, const CallNeeds& needs = {}) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      renounce_privileges();
      install_call_filter(needs);
      ::_exit(action() < 0 ? errno : 0);
    } catch (const std::exception&) {
      ::_exit(255);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

class CallFilter : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_filter_calls())
      GTEST_SKIP() << "this kernel has no seccomp filters";
  }
};

TEST_F(CallFilter, ThreadsCanBeStarted) {
  const Action start = [] {
    std::thread([] {}).join();
    return 0;
  };
  EXPECT_EQ(error_of(start), 0);
}

// Promise 14.
TEST_F(CallFilter, FilesAreOpenedForReadingOnly) {
  const auto opens = [](const char* path, int flags) -> Action {
    return [=] { return ::open(path, flags, 0600); };
  };
  EXPECT_EQ(error_of(opens("/dev/null", O_RDONLY)), 0);
  EXPECT_EQ(error_of(opens("/dev/null", O_RDONLY | O_CREAT)), EPERM);
  for (const int flags : {O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_WRONLY | O_APPEND})
    EXPECT_EQ(error_of(opens("/dev/null", flags)), EPERM) << flags;
  EXPECT_EQ(error_of(opens("/tmp", O_TMPFILE | O_RDWR)), EPERM);
}

TEST_F(CallFilter, DeviceFilesCanBeOpenedForUpdateWhereTheyAreNeeded) {
  const CallNeeds devices{true, false};
  EXPECT_EQ(error_of([] { return ::open("/dev/null", O_RDWR); }, devices), 0);
  EXPECT_EQ(error_of([] { return ::open("/dev/null", O_RDWR | O_CREAT, 0600); }, devices), EPERM);
  EXPECT_EQ(error_of([] { return ::open("/dev/null", O_WRONLY); }, devices), EPERM);
}

// Promise 14.
TEST_F(CallFilter, SignalsReachThisProcessOnly) {
  const pid_t parent = ::getpid();
  EXPECT_EQ(error_of([] { return ::kill(::getpid(), 0); }), 0);
  EXPECT_EQ(error_of([] { return ::raise(SIGCHLD); }), 0);
  EXPECT_EQ(error_of([=] { return ::kill(parent, 0); }), EPERM);
  EXPECT_EQ(error_of([=] { return ::kill(-1, 0); }), EPERM);
  EXPECT_EQ(error_of([=] { return ::syscall(SYS_tgkill, parent, parent, 0); }), EPERM);
  EXPECT_EQ(error_of([=] { return ::syscall(SYS_tkill, parent, 0); }), EPERM);
  EXPECT_EQ(error_of([=] { return ::fcntl(0, F_SETOWN, parent); }), EPERM);
  EXPECT_EQ(error_of([] { return ::fcntl(0, F_SETSIG, SIGKILL); }), EPERM);
  EXPECT_EQ(error_of([] { return ::raise(SIGABRT); }), 256 + SIGABRT);
}

TEST_F(CallFilter, NoLimitIsChangedAndAllCanBeRead) {
  rlimit limit{};
  EXPECT_EQ(error_of([&] { return ::getrlimit(RLIMIT_NOFILE, &limit); }), 0);
  EXPECT_EQ(error_of([&] { return ::setrlimit(RLIMIT_NOFILE, &limit); }), EPERM);
}

// Promise 7.
TEST_F(CallFilter, WhereMemoryIsLimitedAllMemoryIsSuchThatTheKernelCounts) {
  const auto map = [](int flags) {
    return [flags]() -> long {
      void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
      return memory == MAP_FAILED ? -1 : 0;
    };
  };
  const Action make_file = [] { return ::memfd_create("memory", 0); };
  const Action map_file = []() -> long {
    const int file = ::open("/proc/self/exe", O_RDONLY);
    void* const memory = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? -1 : 0;
  };
  CallNeeds limited;
  limited.limits_memory = true;
  EXPECT_EQ(error_of(map(MAP_PRIVATE | MAP_ANONYMOUS), limited), 0);
  EXPECT_EQ(error_of(map_file, limited), 0);
  for (const int flags : {MAP_SHARED, MAP_SHARED_VALIDATE, MAP_PRIVATE | MAP_GROWSDOWN})
    EXPECT_EQ(error_of(map(flags | MAP_ANONYMOUS), limited), ENOMEM) << flags;
  EXPECT_EQ(error_of(make_file, limited), ENOSYS);
  EXPECT_EQ(error_of(map(MAP_SHARED | MAP_ANONYMOUS)), 0);
  EXPECT_EQ(error_of(make_file), 0);
}

// Promise 14.
TEST_F(CallFilter, NothingIsTypedIntoATerminal) {
  const char letter = 'x';
  int waiting = 0;
  for (const bool has_devices : {false, true}) {
    const CallNeeds needs{has_devices, false};
    EXPECT_EQ(error_of([&] { return ::ioctl(0, TIOCSTI, &letter); }, needs), EPERM);
    EXPECT_EQ(error_of([&] { return ::ioctl(0, FIOSETOWN, &waiting); }, needs), EPERM);
    // NVIDIA's driver numbers some of its calls from 1.
    EXPECT_EQ(error_of([&] { return ::ioctl(0, 1, &waiting); }, needs) == EPERM, !has_devices);
  }
}

// Numbers of calls that older headers do not name.
constexpr int kPidfdSendSignal = 424;
constexpr int kIoUringSetup = 425;
constexpr int kClone3 = 435;
constexpr int kOpenat2 = 437;
constexpr int kPidfdGetfd = 438;
constexpr int kLandlockRestrictSelf = 446;
constexpr int kNewerThanAll = 500;

// clang-format off
constexpr auto kNeededByNobody = std::to_array<int>({
    SYS_execve, SYS_execveat, SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen,
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_unshare, SYS_setns, SYS_mount,
    SYS_umount2, SYS_chroot, SYS_pivot_root, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_setuid, SYS_setresuid, SYS_capset,
    SYS_personality, SYS_seccomp, SYS_unlinkat, SYS_mkdirat, SYS_renameat2, SYS_linkat,
    SYS_symlinkat, SYS_fchmodat, SYS_fchownat, SYS_truncate, SYS_ftruncate, SYS_utimensat,
    SYS_setxattr, SYS_open_by_handle_at, SYS_shmget, SYS_mq_open, SYS_inotify_init1,
    SYS_init_module, SYS_reboot, SYS_setpriority, SYS_sched_setscheduler, kPidfdSendSignal,
    kPidfdGetfd, kLandlockRestrictSelf,
});

// clang-format on

// Promise 14.
TEST_F(CallFilter, WhatNobodyNeedsIsRefused) {
  for (const int call : kNeededByNobody)
    EXPECT_EQ(error_of([=] { return ::syscall(call, 0, 0, 0, 0, 0, 0); }), EPERM) << call;
}

TEST_F(CallFilter, OnlyTcpConnectionsCanBeOpenedWhereTheyAreNeeded) {
  CallNeeds connections;
  connections.opens_connections = true;
  const auto makes = [&](int family, int type, int protocol) {
    return error_of([=] { return ::socket(family, type, protocol); }, connections);
  };
  EXPECT_EQ(makes(AF_INET, SOCK_STREAM, 0), 0);
  EXPECT_EQ(makes(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP), 0);
  EXPECT_EQ(makes(AF_INET, SOCK_DGRAM, 0), EPERM);
  EXPECT_EQ(makes(AF_INET, SOCK_RAW, IPPROTO_ICMP), EPERM);
  EXPECT_EQ(makes(AF_INET, SOCK_STREAM, IPPROTO_SCTP), EPERM);
  EXPECT_EQ(makes(AF_INET6, SOCK_DGRAM, 0), EPERM);
  EXPECT_EQ(makes(AF_UNIX, SOCK_STREAM, 0), EPERM);
  EXPECT_EQ(makes(AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT), EPERM);
  ifaddrs* addresses = nullptr;
  EXPECT_EQ(error_of([&] { return ::getifaddrs(&addresses); }, connections), 0);
  const Action listens = [] {
    const int own = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    if (::bind(own, place, size) != 0 || ::listen(own, 1) != 0 ||
        ::getsockname(own, place, &size) != 0)
      return -1;
    return ::connect(::socket(AF_INET, SOCK_STREAM, 0), place, size);
  };
  EXPECT_EQ(error_of(listens, connections), 0);
}

// Promise 14.
TEST_F(CallFilter, OverASocketGoBytesToItsPeerAndNoDescriptor) {
  const std::pair<Fd, Fd> ends = message_pair();
  const Fd& ours = ends.first;
  const int socket = ours.get();
  std::byte letter{};
  const Action passes = [&]() -> long {
    const std::array passed{socket};
    return pass_descriptors(ours, std::span(&letter, 1), passed) == Passed::kSent ? 0 : -1;
  };
  const auto sends = [&](const sockaddr* to) -> Action {
    return [&, to] { return ::sendto(socket, &letter, 1, 0, to, to == nullptr ? 0 : sizeof *to); };
  };
  const sockaddr any{AF_UNSPEC, {}};
  EXPECT_EQ(error_of(sends(nullptr)), 0);
  EXPECT_EQ(error_of(sends(&any)), EPERM);
  EXPECT_EQ(error_of(passes), EPERM);
  EXPECT_EQ(error_of(passes, {true, false}), 0);  // a driver may
  const Action writes = [&]() -> long {
    send_without_sendmsg();
    iovec part{&letter, 1};
    if (send_parts(ours, std::span(&part, 1)) != 1)
      return -1;
    ::shutdown(socket, SHUT_WR);
    return send_parts(ours, std::span(&part, 1));  // and no SIGPIPE
  };
  EXPECT_EQ(error_of(writes), EPIPE);
}

// Promise 14.
TEST_F(CallFilter, ASocketThatTakesNoDescriptorsStaysSo) {
  constexpr int kPassRights = 83;
  const std::pair<Fd, Fd> ends = message_pair();
  const int socket = ends.first.get();
  const auto sets = [&](int name) -> Action {
    return [=] {
      const int yes = 1;
      return ::setsockopt(socket, SOL_SOCKET, name, &yes, sizeof yes);
    };
  };
  EXPECT_EQ(error_of(sets(kPassRights)), EPERM);
  EXPECT_EQ(error_of(sets(SO_KEEPALIVE)), 0);
}

// Promise 14.
TEST_F(CallFilter, OnlyWhoNeedsItAcceptsConnections) {
  const Fd listening = named_socket("torch-remote-call-filter-" + std::to_string(::getpid()));
  const Fd client = socket_to("torch-remote-call-filter-" + std::to_string(::getpid()));
  const Action accepts = [&] { return ::accept(listening.get(), nullptr, nullptr); };
  CallNeeds needs;
  EXPECT_EQ(error_of(accepts, needs), EPERM);
  needs.accepts_connections = true;
  EXPECT_EQ(error_of(accepts, needs), 0);
}

TEST_F(CallFilter, WhatLibrariesTryLooksAsOnAnOlderKernel) {
  for (const int call : {kClone3, kOpenat2, kIoUringSetup, kNewerThanAll})
    EXPECT_EQ(error_of([=] { return ::syscall(call, 0, 0, 0, 0, 0, 0); }), ENOSYS) << call;
}

// Promise 14.
TEST_F(CallFilter, ProcessesAreNotForkedInAnyWay) {
  EXPECT_EQ(error_of([] { return ::fork(); }), EPERM);
  EXPECT_EQ(error_of([] { return ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }), EPERM);
}

// Promise 14.
TEST_F(CallFilter, FlagsOfADescriptorAreSetButNoneThatSendsSignals) {
  const auto [reader, writer] = pipe_pair();
  const int pipe = writer.get();
  EXPECT_EQ(error_of([=] { return ::fcntl(pipe, F_SETFL, O_NONBLOCK); }), 0);
  EXPECT_EQ(error_of([=] { return ::fcntl(pipe, F_SETFL, O_ASYNC); }), EPERM);
  EXPECT_EQ(error_of([=] { return ::fcntl(pipe, F_SETOWN, 1); }), EPERM);
  // The kernel limits the memory of pipes for each user.
  EXPECT_EQ(error_of([=] { return ::fcntl(pipe, F_SETPIPE_SZ, 1 << 20); }), EPERM);
}

// Promise 7.
TEST_F(CallFilter, PartsOfFilesAreLockedOnlyWhereADriverMayWantIt) {
  struct flock part {};

  part.l_type = F_RDLCK;
  part.l_len = 1;
  const Action lock = [&] { return ::fcntl(::open("/proc/self/exe", O_RDONLY), F_SETLK, &part); };
  EXPECT_EQ(error_of(lock), EPERM);
  EXPECT_EQ(error_of(lock, {true, false}), 0);
}

// Promise 7.
TEST_F(CallFilter, WhatTheKernelLimitsForEachUserIsMadeOnlyWhereALibraryNeedsIt) {
  timer_t made{};
  const Action timer = [&] { return ::syscall(SYS_timer_create, CLOCK_MONOTONIC, nullptr, &made); };
  const Action watch = [] { return ::epoll_create1(0); };
  for (const Action& action : {timer, watch}) {
    EXPECT_EQ(error_of(action), EPERM);
    EXPECT_EQ(error_of(action, {.opens_devices = true}), 0);
  }
  EXPECT_EQ(error_of(timer, {.opens_connections = true}), EPERM);
  EXPECT_EQ(error_of(watch, {.opens_connections = true}), 0);
}

// Promise 14.
TEST_F(CallFilter, AFileThatOthersLockIsNotLocked) {
  const Action lock = [] { return ::flock(::open("/proc/self/exe", O_RDONLY), LOCK_SH); };
  EXPECT_EQ(error_of(lock), EPERM);
  EXPECT_EQ(error_of(lock, {.opens_devices = true}), 0);
  EXPECT_EQ(error_of(lock, {.stores_files = true}), 0);
}

// Promise 14.
TEST_F(CallFilter, ThreadsThatRanBeforeAreFilteredToo) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto [wake, waits] = pipe_pair();
    int error = 0;
    std::thread early([&, ends = std::move(wake)] {
      char byte = 0;
      (void)!::read(ends.get(), &byte, 1);
      error = ::socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? errno : 0;
    });
    renounce_privileges();
    install_call_filter({});
    waits.reset();
    early.join();
    ::_exit(error);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), EPERM);
}

TEST_F(CallFilter, ATracedProcessIsToldWhatWasRefused) {
  auto [told, writes] = pipe_pair();
  Fd tells = std::move(writes);  // clang 14 captures no structured binding
  const Action refused = [&] {
    ::dup2(tells.get(), STDERR_FILENO);
    const int opened = ::open("/dev/null", O_RDONLY);
    const bool is_refused = ::socket(AF_UNIX, SOCK_STREAM, 0) < 0 && errno == EPERM;
    return opened >= 0 && is_refused ? 0L : -1L;
  };
  EXPECT_EQ(error_of(refused, {false, true}), 0);
  tells.reset();
  std::string text(200, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(told.get(), text.data(), 200))));
  EXPECT_TRUE(text.starts_with("sandbox refused system call " + std::to_string(SYS_socket) + " "))
      << text;
}

}  // namespace
}  // namespace torch_remote
