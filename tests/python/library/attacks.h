// What code tries that has taken a session over: test_sandbox.py. Each attempt returns 0 where it
// succeeded, else errno.
#pragma once

#include <cerrno>
#include <map>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
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

// Takes the flag away that keeps the writer at the end of the log.
int64_t write_anywhere(const Target&) {
  const int flags = ::fcntl(STDERR_FILENO, F_GETFL);
  if (::fcntl(STDERR_FILENO, F_SETFL, flags & ~O_APPEND) < 0)
    return errno;
  return outcome(::fcntl(STDERR_FILENO, F_SETFL, flags));
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
      {"write anywhere", write_anywhere},
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
