#pragma once

#include <cstdint>
#include <string>

#include "wire/messages.h"

namespace torch_remote::client {

class Session;

enum class ErrorClass { kRemote, kSessionLost, kProtocol, kConnection, kDeviceLost };

// How this process raises our exceptions and waits without the GIL. `bindings` fills it in; without Python
// (C++ tests) the defaults throw std::runtime_error and do nothing.
struct PythonHooks {
  void (*raise)(ErrorClass kind, const std::string& text) = nullptr;  // does not return
  // Does not return. `as_local`: the error is of the local operator's type too.
  void (*raise_remote)(const wire::Error& error, const std::string& text, bool as_local) = nullptr;
  void* (*release_gil)() = nullptr;  // null when this thread does not hold it
  void (*acquire_gil)(void* state) = nullptr;
  void (*check_signals)() = nullptr;  // throws when the user has interrupted; with the GIL released
  // The LineId (client/session/lines.h) of this thread's topmost frame outside torch; without the GIL.
  uint32_t (*find_line)() = nullptr;
  // This thread is about to be told of the failure that has stopped it at the call `since`. Takes back
  // what its program has done on this side since.
  void (*take_back)(const Session& session, uint64_t since) = nullptr;
};

extern PythonHooks python_hooks;

[[noreturn]] void raise(ErrorClass kind, const std::string& text);
[[noreturn]] void raise_remote(const wire::Error& error, const std::string& text, bool as_local);

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
