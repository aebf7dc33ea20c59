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

// One direction of a delayed stream: runs of bytes with their due times. Thread-safe.
class DelayQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Bytes = std::vector<std::byte>;

  explicit DelayQueue(const DelaySpec& spec);

  // Waits for room. False: stop() or cut() was called.
  bool push(std::span<const std::byte> bytes) EXCLUDES(mutex_);
  // Nothing more will be pushed. When all runs are taken, pop() returns the end or throws `error`.
  void finish(std::exception_ptr error) EXCLUDES(mutex_);
  // Waits until the next run is due. Empty: the end.
  Bytes pop() EXCLUDES(mutex_);
  // From now on push() returns false; what is in the queue still comes out.
  void stop() noexcept EXCLUDES(mutex_);
  // Like stop(), and pop() returns the end at once.
  void cut() noexcept EXCLUDES(mutex_);
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
  std::minstd_rand random_ GUARDED_BY(mutex_);  // constant seed: every test run has the same jitter
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool cut_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  Clock::time_point finish_due_ GUARDED_BY(mutex_);
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::transport
