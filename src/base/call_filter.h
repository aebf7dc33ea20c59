#pragma once

// Limits which system calls this process can make: Linux's seccomp. It cannot be taken back.
namespace torch_remote {

// What the process will need beyond computing, threads, and the descriptors that it has.
struct CallNeeds {
  bool opens_devices = false;  // opens device files for writing, and calls ioctl() on them
  // Refused calls, and files that cannot be opened, are printed on standard error: to find out what
  // a library needs. A thread that blocks SIGSYS is killed by its first refused call.
  bool is_traced = false;
  bool opens_connections = false;  // makes, binds and connects TCP sockets; lists network addresses
  // Has only memory that RLIMIT_DATA counts: none that could be shared, no file of memory, and none
  // that grows as a stack does.
  bool limits_memory = false;
  bool accepts_connections = false;  // of a listening socket that it has
  // Makes, changes and removes files, and sends descriptors: the helper of the cache.
  bool stores_files = false;
};

// Whether the kernel has what install_call_filter() needs.
bool can_filter_calls() noexcept;

// For all threads. Allows what is in a list of calls; refuses the rest with EPERM, and with ENOSYS
// the few that libraries try before they do without. After it the process starts no program and no
// process, makes no socket, makes or changes no file, opens none for writing (but see CallNeeds for
// both), and sends signals to itself only. Over the sockets that it has it sends bytes to who is
// connected, and no descriptor: see send_without_sendmsg(). With `opens_devices` it can send them,
// as a driver may. Throws std::system_error.
void install_call_filter(const CallNeeds& needs);

// For all threads. Prints each file that cannot be opened on standard error, as is_traced does, and
// refuses nothing itself. Throws std::system_error.
void trace_opened_files();

// Note [Traced calls]
//
// To find out what a library needs (docs/security.md), the filter of a traced process answers with
// SIGSYS where it would refuse a call, and the signal's handler prints the call and refuses it. It
// does the same for each file that is opened: the handler opens it by openat2(), which the filter
// allows there, and prints what Landlock refuses.

// For install_call_filter(): sets the handler. The filter's answer has the error of a refused call;
// 0: open the file.
void trace_refused_calls();

}  // namespace torch_remote
