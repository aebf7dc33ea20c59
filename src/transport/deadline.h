#pragma once

#include <chrono>
#include <thread>

#include "base/mutex.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// Shuts the stream down after `time`, unless it is destroyed before.
class Deadline {
 public:
  Deadline(Stream& stream, std::chrono::milliseconds time)
      : thread_([this, &stream, until = CondVar::Clock::now() + time] { watch(stream, until); }) {}

  ~Deadline() {
    {
      MutexLock lock(mutex_);
      is_met_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Whether it has shut the stream down.
  bool has_passed() {
    MutexLock lock(mutex_);
    return has_passed_;
  }

  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  void watch(Stream& stream, CondVar::Clock::time_point until) {
    {
      MutexLock lock(mutex_);
      while (!is_met_)
        if (!changed_.wait_until(mutex_, until))
          break;
      has_passed_ = !is_met_;
      if (!has_passed_)
        return;
    }
    stream.shutdown();
  }

  Mutex mutex_;
  CondVar changed_;
  bool is_met_ GUARDED_BY(mutex_) = false;
  bool has_passed_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: the thread uses the members above
};

}  // namespace torch_remote::transport
