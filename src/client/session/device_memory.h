#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace torch_remote::client {

// How many bytes the program's tensors on one device have, and from where on memory is scarce.
// Thread-safe; on the path of every call.
class DeviceMemory {
 public:
  void add(int64_t bytes) { live_.fetch_add(bytes, std::memory_order_relaxed); }

  int64_t live() const { return live_.load(std::memory_order_relaxed); }

  // More than this is near the limit, or the limit is not known yet.
  bool is_above_mark() const { return live() > mark_.load(std::memory_order_relaxed); }

  // Until the first call it is not known how much the device has.
  bool has_mark() const { return mark_.load(std::memory_order_relaxed) >= 0; }

  // The mark is never above what is allowed, so that the path of a call looks at the mark only.
  void set_mark(int64_t bytes, bool is_exact) {
    mark_.store(std::min(bytes, allowed()), std::memory_order_relaxed);
    is_exact_.store(is_exact, std::memory_order_relaxed);
  }

  // The mark came from what the server has free, not only from the device's size.
  bool is_exact() const { return is_exact_.load(std::memory_order_relaxed); }

  // The tensors are over the limit that the program has set.
  bool is_above_limit() const { return live() > allowed(); }

  // The program limits its tensors to this many bytes. set_mark() has to follow.
  void set_allowed(int64_t bytes, double fraction) {
    allowed_.store(bytes, std::memory_order_relaxed);
    fraction_.store(fraction, std::memory_order_relaxed);
  }

  int64_t allowed() const { return allowed_.load(std::memory_order_relaxed); }

  double allowed_fraction() const { return fraction_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> mark_{-1};
  std::atomic<bool> is_exact_{false};
  std::atomic<int64_t> allowed_{std::numeric_limits<int64_t>::max()};
  std::atomic<double> fraction_{1.0};
};

}  // namespace torch_remote::client
