// What code tries that has taken a session over: test_sandbox.py. Each attempt returns 0 where it
// succeeded, else errno.
#pragma once

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/library.h>

namespace attacks {

struct Target {
  std::string path;
  pid_t pid;
};

int64_t outcome(long result) {
  return result < 0 ? errno : 0;
}

// Of a call that returns a descriptor.
int64_t opened(int descriptor) {
  const int64_t told = outcome(descriptor);
  if (descriptor >= 0)
    ::close(descriptor);
  return told;
}

int64_t read_file(const Target& target) {
  const int descriptor = ::open(target.path.c_str(), O_RDONLY);
  char byte = 0;
  if (descriptor >= 0 && ::read(descriptor, &byte, 1) < 0) {
    const int64_t told = errno;
    ::close(descriptor);
    return told;
  }
  return opened(descriptor);
}

int64_t start_program(const Target& target) {
  char* const arguments[] = {const_cast<char*>(target.path.c_str()), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, arguments[0], nullptr, nullptr, arguments, arguments + 1);
  if (error == 0)
    ::waitpid(child, nullptr, 0);
  return error;
}

int64_t fork_process(const Target&) {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(0);
  const int64_t told = outcome(child);
  if (child > 0)
    ::waitpid(child, nullptr, 0);
  return told;
}

int64_t trace_process(const Target& target) {
  if (::ptrace(PTRACE_ATTACH, target.pid, nullptr, nullptr) != 0)
    return errno;
  ::waitpid(target.pid, nullptr, __WALL);
  ::ptrace(PTRACE_DETACH, target.pid, nullptr, nullptr);
  return 0;
}

int64_t limit_process(const Target& target) {
  rlimit now{};
  if (::prlimit(target.pid, RLIMIT_CORE, nullptr, &now) != 0)
    return errno;
  return outcome(::prlimit(target.pid, RLIMIT_CORE, &now, nullptr));
}

int64_t pair_sockets(const Target&) {
  int ends[2] = {-1, -1};
  const int64_t told = outcome(::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
  if (told == 0) {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  return told;
}

// The kernel signals who owns a descriptor.
int64_t own_descriptor(const Target& target) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0)
    return errno;
  const int64_t told = outcome(::fcntl(ends[0], F_SETOWN, target.pid));
  ::close(ends[0]);
  ::close(ends[1]);
  return told;
}

// Writes the text to the log, `pid` times.
int64_t print_text(const Target& target) {
  int64_t bytes = 0;
  for (pid_t i = 0; i < target.pid; ++i)
    bytes += std::max<ssize_t>(0, ::write(STDERR_FILENO, target.path.data(), target.path.size()));
  return bytes > 0 ? 0 : EAGAIN;
}

// Where the log is a pipe, this takes lines of others out of it.
int64_t read_log(const Target&) {
  const int log = ::open("/proc/self/fd/2", O_RDONLY | O_NONBLOCK);
  char text[65536];
  const ssize_t got = log < 0 ? -1 : ::read(log, text, sizeof text);
  const int64_t told = got > 0 ? 0 : errno;
  ::close(log);
  return told;
}

// Sends as many descriptors as the kernel takes over each socket that this process has. Returns how
// many.
int64_t send_descriptors(const Target&) {
  constexpr int kMost = 250;
  int64_t sent = 0;
  for (int socket = 3; socket < 1024; ++socket) {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(kMost * sizeof(int));
    for (int i = 0; i < kMost; ++i)
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &socket, sizeof(int));
    int family = 0;
    socklen_t size = sizeof family;
    if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0 || family != AF_UNIX)
      continue;
    while (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
      sent += kMost;
  }
  return sent;
}

// Takes `pid` MiB of memory, each made read-only so that RLIMIT_DATA does not count it.
int64_t take_memory(const Target& target) {
  constexpr size_t kMiB = 1 << 20;
  for (pid_t i = 0; i < target.pid; ++i) {
    void* const made =
        ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
      return errno;
    std::memset(made, 1, kMiB);
    if (::mprotect(made, kMiB, PROT_READ) != 0)
      return errno;
  }
  return 0;
}

// Takes `pid` MiB of page tables: one of 4 KiB for each 2 MiB in which a byte was read.
int64_t take_page_tables(const Target& target) {
  constexpr size_t kReach = 2 << 20;
  constexpr size_t kStep = 256 * kReach;
  for (pid_t i = 0; i < target.pid; ++i) {
    void* const made =
        ::mmap(nullptr, kStep, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
      return errno;
    ::madvise(made, kStep, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < kStep; at += kReach)
      (void)static_cast<const volatile char*>(made)[at];
  }
  return 0;
}

// Locks every second byte of a file, `pid` times. The kernel has memory for each.
int64_t lock_parts(const Target& target) {
  const int file = ::open("/proc/self/exe", O_RDONLY);
  for (pid_t i = target.pid; i > 0; --i) {
    struct flock part {};

    part.l_type = F_RDLCK;
    part.l_start = 2 * i;
    part.l_len = 1;
    if (::fcntl(file, F_SETLK, &part) != 0)
      return errno;
  }
  return 0;
}

// Starts `pid` threads that never end.
int64_t take_threads(const Target& target) {
  pthread_attr_t small;
  ::pthread_attr_init(&small);
  ::pthread_attr_setstacksize(&small, 64 << 10);
  int64_t told = 0;
  for (pid_t i = 0; i < target.pid && told == 0; ++i) {
    pthread_t made{};
    const auto wait = [](void*) -> void* {
      while (true)
        ::pause();
    };
    told = ::pthread_create(&made, &small, wait, nullptr);
  }
  ::pthread_attr_destroy(&small);
  return told;
}

int64_t load_library(const Target& target) {
  return ::dlopen(target.path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr ? 0 : EACCES;
}

using Attempt = int64_t (*)(const Target&);

const std::map<std::string, Attempt>& attempts() {
  static const std::map<std::string, Attempt> all{
      {"read", read_file},
      {"write", [](const Target& t) { return opened(::open(t.path.c_str(), O_WRONLY)); }},
      {"update", [](const Target& t) { return opened(::open(t.path.c_str(), O_RDWR)); }},
      {"create", [](const Target& t) { return opened(::creat(t.path.c_str(), 0600)); }},
      {"remove", [](const Target& t) { return outcome(::unlink(t.path.c_str())); }},
      {"make folder", [](const Target& t) { return outcome(::mkdir(t.path.c_str(), 0700)); }},
      {"list", [](const Target& t) { return opened(::open(t.path.c_str(), O_DIRECTORY)); }},
      {"chmod", [](const Target& t) { return outcome(::chmod(t.path.c_str(), 0600)); }},
      {"load", load_library},
      {"print", print_text},
      {"read the log", read_log},
      {"end the log", [](const Target&) { return outcome(::shutdown(STDERR_FILENO, SHUT_RDWR)); }},
      {"send descriptors", send_descriptors},
      {"take memory", take_memory},
      {"take page tables", take_page_tables},
      {"lock parts", lock_parts},
      {"take threads", take_threads},
      {"crash", [](const Target&) { return outcome(::raise(SIGSEGV)); }},
      {"tcp", [](const Target&) { return opened(::socket(AF_INET, SOCK_STREAM, 0)); }},
      {"unix", [](const Target&) { return opened(::socket(AF_UNIX, SOCK_STREAM, 0)); }},
      {"pair", pair_sockets},
      {"execute", [](const Target& t) { return outcome(::execl(t.path.c_str(), "", nullptr)); }},
      {"spawn", start_program},
      {"fork", fork_process},
      {"kill", [](const Target& t) { return outcome(::kill(t.pid, 0)); }},
      {"own", own_descriptor},
      {"ptrace", trace_process},
      {"limit", limit_process},
      {"unshare", [](const Target&) { return outcome(::unshare(0)); }},
  };
  return all;
}

int64_t attempt(const at::Tensor& /*self*/, c10::string_view what, c10::string_view path,
                int64_t pid) {
  errno = 0;
  return attempts().at(std::string(what))({std::string(path), static_cast<pid_t>(pid)});
}

}  // namespace attacks

TORCH_LIBRARY_FRAGMENT(tests, m) {
  m.def("attempt(Tensor self, str what, str path, int pid) -> int");
}

TORCH_LIBRARY_IMPL(tests, CPU, m) {
  m.impl("attempt", attacks::attempt);
}
