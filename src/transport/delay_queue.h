#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <random>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "transport/delay_spec.h"

namespace torch_remote::transport {

// One direction of a delay line: runs of bytes, each with the time when it is due. Thread-safe.
class DelayQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Bytes = std::vector<std::byte>;

  explicit DelayQueue(const DelaySpec& spec);

  // Waits for room. False: stop() or cut() was called.
  bool push(std::span<const std::byte> bytes) EXCLUDES(mutex_);
  // No more will be pushed; pop() says so (or throws `error`) when everything before is through.
  void finish(std::exception_ptr error) EXCLUDES(mutex_);
  // The next run that is due; waits for it. Empty: the end.
  Bytes pop() EXCLUDES(mutex_);
  // push() refuses from now on; what is in the queue still comes out.
  void stop() noexcept EXCLUDES(mutex_);
  // pop() also ends at once.
  void cut() noexcept EXCLUDES(mutex_);
  // When the last run pushed so far is due.
  Clock::time_point last_due() EXCLUDES(mutex_);

 private:
  struct Run {
    Clock::time_point due;
    Bytes bytes;
  };

  Clock::time_point due_time(size_t bytes) REQUIRES(mutex_);
  bool wait_for_room(size_t bytes) REQUIRES(mutex_);

  const Clock::duration delay_;
  const Clock::duration jitter_;
  const double nanoseconds_per_byte_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Run> runs_ GUARDED_BY(mutex_);
  size_t held_bytes_ GUARDED_BY(mutex_) = 0;
  Clock::time_point link_free_ GUARDED_BY(mutex_);  // when the link has sent all bytes so far
  Clock::time_point last_due_ GUARDED_BY(mutex_);
  std::minstd_rand random_ GUARDED_BY(mutex_);  // the same jitter in every run of a test
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool cut_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  Clock::time_point finish_due_ GUARDED_BY(mutex_);
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::transport
