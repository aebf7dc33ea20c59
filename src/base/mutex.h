#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// Clang checks these annotations (-Wthread-safety); for g++ they are empty.
#if defined(__clang__)
#define TORCH_REMOTE_ATTRIBUTE(x) __attribute__((x))
#else
#define TORCH_REMOTE_ATTRIBUTE(x)
#endif
#define CAPABILITY(x) TORCH_REMOTE_ATTRIBUTE(capability(x))
#define SCOPED_CAPABILITY TORCH_REMOTE_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(x) TORCH_REMOTE_ATTRIBUTE(guarded_by(x))
#define REQUIRES(...) TORCH_REMOTE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) TORCH_REMOTE_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) TORCH_REMOTE_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) TORCH_REMOTE_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS TORCH_REMOTE_ATTRIBUTE(no_thread_safety_analysis)

namespace torch_remote {

// std::mutex with clang's annotations, which libstdc++ lacks.
class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }

  void unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }

  ~MutexLock() RELEASE() { mutex_.unlock(); }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  MutexLock(MutexLock&&) = delete;
  MutexLock& operator=(MutexLock&&) = delete;

 private:
  Mutex& mutex_;
};

// std::condition_variable for Mutex. The waits take no predicate, because clang does not check
// inside lambdas: write `while (!ready_) changed_.wait(mutex_);`. Spurious wakeups happen.
class CondVar {
 public:
  using Clock = std::chrono::steady_clock;

  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False: the deadline passed.
  bool wait_until(Mutex& mutex, Clock::time_point deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

  bool wait_for(Mutex& mutex, Clock::duration duration) REQUIRES(mutex) {
    return wait_until(mutex, Clock::now() + duration);
  }

  void notify_one() noexcept { condition_.notify_one(); }

  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace torch_remote
