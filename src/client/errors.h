#pragma once

#include <string>

#include "client/lines.h"
#include "wire/messages.h"

namespace torch_remote::client {

class Session;

enum class ErrorClass { kRemote, kSessionLost, kProtocol, kConnection, kDeviceLost };

// How this process raises our exceptions and waits without the GIL. `bindings` fills it in; without Python
// (C++ tests) the defaults throw std::runtime_error and do nothing.
struct PythonHooks {
  void (*raise)(ErrorClass kind, const std::string& text) = nullptr;  // does not return
  void (*raise_remote)(const wire::Error& error,
                       const std::string& text) = nullptr;  // does not return
  void* (*release_gil)() = nullptr;  // null when this thread does not hold it
  void (*acquire_gil)(void* state) = nullptr;
  void (*check_signals)() = nullptr;  // throws when the user has interrupted; with the GIL released
  LineId (*find_line)() = nullptr;    // this thread's topmost frame outside torch; without the GIL
  // The user is about to be told of a failure. Takes back what the program has done on its own side since; true: also
  // everything that it has written on the server since is to be undone.
  bool (*undo)(const Session& session, uint64_t cause) = nullptr;
};

extern PythonHooks python_hooks;

[[noreturn]] void raise(ErrorClass kind, const std::string& text);
[[noreturn]] void raise_remote(const wire::Error& error, const std::string& text);

// Releases the GIL, if this thread holds it, for as long as it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(python_hooks.release_gil ? python_hooks.release_gil() : nullptr) {}

  ~WithoutGil() {
    if (state_ != nullptr)
      python_hooks.acquire_gil(state_);
  }

  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_;
};

}  // namespace torch_remote::client
