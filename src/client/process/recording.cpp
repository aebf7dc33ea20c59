#include "client/process/recording.h"

#include <string>
#include <unordered_map>

#include <c10/util/Exception.h>

#include "base/mutex.h"
#include "client/process/threads.h"

namespace torch_remote::client {
namespace {

// Of kOfThisThread.
thread_local Recording* own_recording = nullptr;

constexpr int kCaptureUnsupported = 900;  // cudaErrorStreamCaptureUnsupported

struct Recordings {
  Mutex mutex;
  std::unordered_map<uint64_t, Recording*> by_thread GUARDED_BY(mutex);

  static Recordings& instance() {
    static auto* const recordings = new Recordings;  // leaks: threads end at exit
    return *recordings;
  }
};

}  // namespace

std::atomic<int> open_recordings{0};

Recording* find_recording() {
  if (own_recording != nullptr)
    return own_recording;
  Recordings& all = Recordings::instance();
  MutexLock lock(all.mutex);
  const auto found = all.by_thread.find(current_thread());
  return found == all.by_thread.end() ? nullptr : found->second;
}

void begin_recording(Recording& recording, RecordedCalls calls) {
  if (calls == RecordedCalls::kOfThisThread) {
    TORCH_CHECK(current_recording() == nullptr, "this thread captures a graph already");
    own_recording = &recording;
    open_recordings.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Recordings& all = Recordings::instance();
  MutexLock lock(all.mutex);
  const bool is_first = all.by_thread.emplace(current_thread(), &recording).second;
  TORCH_CHECK(is_first, "this thread captures a graph already");
  open_recordings.fetch_add(1, std::memory_order_relaxed);
}

void end_recording(Recording& recording) noexcept {
  if (own_recording == &recording) {
    own_recording = nullptr;
    open_recordings.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  Recordings& all = Recordings::instance();
  MutexLock lock(all.mutex);
  for (auto at = all.by_thread.begin(); at != all.by_thread.end(); ++at) {
    if (at->second != &recording)
      continue;
    all.by_thread.erase(at);
    open_recordings.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
}

void Recording::spoil(const std::string& error) {
  MutexLock lock(mutex_);
  if (spoiled_by_.empty())
    spoiled_by_ = error;
}

std::string Recording::spoiled_by() const {
  MutexLock lock(mutex_);
  return spoiled_by_;
}

void refuse_while_recording(Recording& recording, const char* what) {
  const std::string error =
      std::string(what) +
      ": operation not permitted when stream is capturing: the thread records a program, which "
      "runs later, so nothing can be waited for, read or sent from memory of this process";
  recording.spoil(error);
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                              kCaptureUnsupported, error);
}

}  // namespace torch_remote::client
