#include "transport/delay_queue.h"

#include <algorithm>

namespace torch_remote::transport {
namespace {

constexpr size_t kMostHeld = size_t{256} << 20;
constexpr double kLinkBuffer = 4 << 20;  // bytes that may wait for a limited link

}  // namespace

DelayQueue::DelayQueue(const DelaySpec& spec)
    : delay_(std::chrono::nanoseconds(spec.rtt) / 2),
      jitter_(spec.jitter),
      nanoseconds_per_byte_(spec.mbit_s > 0 ? 8000.0 / spec.mbit_s : 0.0) {}

bool DelayQueue::push(std::span<const std::byte> bytes) {
  Bytes copy(bytes.begin(), bytes.end());
  MutexLock lock(mutex_);
  if (!wait_for_room(bytes.size()))
    return false;
  const Clock::time_point due = due_time(bytes.size());
  held_bytes_ += copy.size();
  runs_.push_back({due, std::move(copy)});
  changed_.notify_all();
  return true;
}

void DelayQueue::finish(std::exception_ptr error) {
  MutexLock lock(mutex_);
  if (finished_)
    return;
  finished_ = true;
  finish_due_ = due_time(0);
  error_ = std::move(error);
  changed_.notify_all();
}

DelayQueue::Bytes DelayQueue::pop() {
  MutexLock lock(mutex_);
  for (;;) {
    if (cut_)
      return {};
    if (runs_.empty() && !finished_) {
      changed_.wait(mutex_);
      continue;
    }
    const Clock::time_point due = runs_.empty() ? finish_due_ : runs_.front().due;
    if (Clock::now() < due) {
      changed_.wait_until(mutex_, due);
      continue;
    }
    break;
  }
  if (runs_.empty()) {
    if (error_)
      std::rethrow_exception(error_);
    return {};
  }
  Bytes bytes = std::move(runs_.front().bytes);
  runs_.pop_front();
  held_bytes_ -= bytes.size();
  changed_.notify_all();
  return bytes;
}

void DelayQueue::stop() noexcept {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void DelayQueue::cut() noexcept {
  MutexLock lock(mutex_);
  stopped_ = true;
  cut_ = true;
  changed_.notify_all();
}

DelayQueue::Clock::time_point DelayQueue::last_due() {
  MutexLock lock(mutex_);
  return last_due_;
}

bool DelayQueue::wait_for_room(size_t bytes) {
  const auto ahead = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::nano>(kLinkBuffer * nanoseconds_per_byte_));
  while (!stopped_) {
    if (held_bytes_ + bytes > kMostHeld && held_bytes_ > 0) {
      changed_.wait(mutex_);
      continue;
    }
    if (link_free_ > Clock::now() + ahead) {
      changed_.wait_until(mutex_, link_free_ - ahead);
      continue;
    }
    return true;
  }
  return false;
}

DelayQueue::Clock::time_point DelayQueue::due_time(size_t bytes) {
  const auto on_the_link = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::nano>(static_cast<double>(bytes) * nanoseconds_per_byte_));
  link_free_ = std::max(link_free_, Clock::now()) + on_the_link;
  std::uniform_int_distribution<Clock::rep> more(0, jitter_.count());
  last_due_ = std::max(last_due_, link_free_ + delay_ + Clock::duration(more(random_)));
  return last_due_;
}

}  // namespace torch_remote::transport
