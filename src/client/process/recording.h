#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/mutex.h"

namespace torch_remote::client {

// While a thread of the user's program has one, its calls are recorded and not sent (Note [Whose
// call] in client/process/threads.h says whose they are). client/programs/recorder.h has the only
// kind.
class Recording {
 public:
  Recording() = default;
  virtual ~Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // The thread has done what no program can do; `error` says what. What was recorded is lost, as on
  // CUDA.
  void spoil(const std::string& error);

  // The first error of spoil(); empty: there was none.
  std::string spoiled_by() const;

 private:
  mutable Mutex mutex_;
  std::string spoiled_by_ GUARDED_BY(mutex_);
};

extern std::atomic<int> open_recordings;  // of all threads

Recording* find_recording();

// Of the thread that this thread's calls belong to; mostly null. On the path of every call.
inline Recording* current_recording() {
  return open_recordings.load(std::memory_order_relaxed) == 0 ? nullptr : find_recording();
}

// Whose calls go to a recording: those of the user's thread, with what autograd's workers do for
// it, or those that this very thread makes, which may be such a worker.
enum class RecordedCalls : uint8_t { kOfUsersThread, kOfThisThread };

// This thread's calls go to the recording until end_recording(). kOfThisThread: which the same
// thread calls.
void begin_recording(Recording& recording, RecordedCalls calls);
void end_recording(Recording& recording) noexcept;

// Raises what CUDA raises where `what` is not possible while a stream captures.
[[noreturn]] void refuse_while_recording(Recording& recording, const char* what);

inline void check_not_recording(const char* what) {
  if (Recording* const recording = current_recording()) [[unlikely]]
    refuse_while_recording(*recording, what);
}

}  // namespace torch_remote::client
