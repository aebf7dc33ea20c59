#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "wire/messages.h"

namespace torch_remote::client {

class Session;

struct ShownWarning {
  bool is_deprecation = false;  // else a UserWarning
  std::string text;
};

enum class ErrorClass { kRemote, kSessionLost, kProtocol, kConnection, kDeviceLost };

// How an error of the server is raised.
struct RaisedAs {
  bool is_local = false;         // the exception is also of the local operator's type
  bool is_of_this_call = false;  // the call that raises it found no memory itself
};

// How to raise our exceptions and release the GIL. `bindings` fills it in. Without Python (C++
// tests) exceptions are std::runtime_error, and the rest does nothing.
struct PythonHooks {
  // These two do not return. `session` is the one that is lost or could not be opened.
  void (*raise)(ErrorClass kind, const std::string& text, const Session& session) = nullptr;
  void (*raise_remote)(const wire::Error& error, const std::string& text, RaisedAs as) = nullptr;
  void* (*release_gil)() = nullptr;  // null when this thread does not hold it
  void (*acquire_gil)(void* state) = nullptr;
  // Throws if the user has interrupted; call it with the GIL released.
  void (*check_signals)() = nullptr;
  // In a handler of what check_signals() threw: a KeyboardInterrupt without a text gets this one.
  void (*name_interrupt)(const std::string& text) = nullptr;
  // The LineId (lines.h) of this thread's topmost frame outside torch. Needs no GIL.
  uint32_t (*find_line)() = nullptr;
  // Called before this thread is told of the failure that has stopped it at the call `since`. Takes
  // back what the program has done on this side since.
  void (*take_back)(const Session& session, uint64_t since) = nullptr;
  // Shows how far a large transfer is: client/session/progress.h. False: it is not shown.
  bool (*begin_progress)(uint64_t bytes, bool is_upload) = nullptr;
  void (*update_progress)() = nullptr;
  void (*end_progress)() = nullptr;
  // The lines of all frames of this thread, the innermost first. Needs no GIL.
  void (*find_stack)(std::vector<uint32_t>& lines) = nullptr;
  // Gives Python's `warnings` a warning of this line; the file is empty if the line is not known.
  // True: a filter makes it an error, which is not raised; with `prints` it is printed.
  bool (*warn)(const ShownWarning& warning, const std::string& file, int line,
               bool prints) = nullptr;
};

extern PythonHooks python_hooks;

// Standard error is shown in a notebook, so long waits are printed though it is no terminal.
extern std::atomic<bool> is_in_notebook;

[[noreturn]] void raise(ErrorClass kind, const std::string& text, const Session& session);
[[noreturn]] void raise_remote(const wire::Error& error, const std::string& text, RaisedAs as);

// Releases the GIL, if this thread holds it, during its lifetime.
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

// During its lifetime, waits of this thread keep the GIL. PyTorch calls some methods (of
// at::Generator) with a lock held that it takes under the GIL: a wait without the GIL could
// deadlock with a thread that has the GIL and wants the lock. None of our waits needs the GIL.
class KeepGil {
 public:
  KeepGil() { ++depth_; }

  ~KeepGil() { --depth_; }

  KeepGil(const KeepGil&) = delete;
  KeepGil& operator=(const KeepGil&) = delete;

  static bool is_kept() { return depth_ > 0; }

 private:
  static thread_local int depth_;
};

}  // namespace torch_remote::client
