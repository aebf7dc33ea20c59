#include "redirect/host_allocator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "base/platform.h"

namespace torch_remote::redirect {
namespace {

// Whether torch's allocator failed for lack of memory, and not for an argument: it has no class of
// errors for that on the CPU.
bool is_shortage(const std::string& text) {
  constexpr std::array<std::string_view, 2> kTexts = {"can't allocate memory", "not enough memory"};
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](std::string_view each) { return text.find(each) != std::string::npos; });
}

// The limit and what counts towards it. Thread-safe.
class Limit {
 public:
  void set(int64_t allowed) {
    before_.store(other_memory(), std::memory_order_relaxed);
    allowed_.store(allowed, std::memory_order_relaxed);
  }

  bool is_set() const { return allowed_.load(std::memory_order_relaxed) != 0; }

  // Counts so many bytes more. False: they are over the limit, and not counted.
  bool take(int64_t bytes) {
    if (bytes == 0 || take_once(bytes))
      return true;
    // What was allocated before the limit was set is not counted when it is freed: look again.
    before_.store(std::min(before_.load(std::memory_order_relaxed), other_memory()),
                  std::memory_order_relaxed);
    return take_once(bytes);
  }

  void give_back(int64_t bytes) { counted_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t allowed() const { return allowed_.load(std::memory_order_relaxed); }

  int64_t used() const {
    return before_.load(std::memory_order_relaxed) + counted_.load(std::memory_order_relaxed);
  }

 private:
  bool take_once(int64_t bytes) {
    const int64_t room = allowed() - before_.load(std::memory_order_relaxed);
    int64_t counted = counted_.load(std::memory_order_relaxed);
    do {
      if (bytes > room - counted)
        return false;
    } while (!counted_.compare_exchange_weak(counted, counted + bytes, std::memory_order_relaxed));
    return true;
  }

  // The process's memory without the counted tensors, as far as these have been written to.
  int64_t other_memory() const {
    const auto resident = static_cast<int64_t>(current_rss_bytes());
    return std::max(int64_t{0}, resident - counted_.load(std::memory_order_relaxed));
  }

  std::atomic<int64_t> allowed_{0};  // 0: no limit
  std::atomic<int64_t> before_{0};   // bytes that are not tensors made since the limit was set
  std::atomic<int64_t> counted_{0};  // bytes of tensors made since then, and not freed
};

Limit limit;

// Memory that is counted while a limit is set.
struct Counted {
  c10::DataPtr memory;
  int64_t bytes = 0;
};

void free_counted(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  limit.give_back(counted->bytes);
}

class HostAllocator;
std::atomic<const HostAllocator*> installed{nullptr};

// Thread-safe. Lives for ever: storages point to it, also after it was removed.
class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator& original) : original_(original) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (installed.load(std::memory_order_relaxed) != this)
      return original_.allocate(bytes);
    if (limit.is_set())
      return allocate_counted(bytes);
    return allocate_from_original(bytes);
  }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return original_.is_simple_data_ptr(data);
  }

  // Memory that is counted has a deleter of its own.
  c10::DeleterFnPtr raw_deleter() const override {
    return limit.is_set() ? nullptr : original_.raw_deleter();
  }

  void copy_data(void* dest, const void* src, size_t count) const override {
    original_.copy_data(dest, src, count);
  }

  c10::Allocator& original() const { return original_; }

 private:
  c10::DataPtr allocate_from_original(size_t bytes) {
    try {
      return original_.allocate(bytes);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      TORCH_CHECK_WITH(OutOfMemoryError, !is_shortage(text), "CPU out of memory. ", text);
      throw;
    }
  }

  c10::DataPtr allocate_counted(size_t bytes) {
    const auto size = static_cast<int64_t>(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, limit.take(size), "CPU out of memory. Tried to allocate ",
                     bytes, " bytes. set_per_process_memory_fraction() allows ", limit.allowed(),
                     " bytes, and this process has ", limit.used());
    try {
      auto counted = std::make_unique<Counted>(Counted{allocate_from_original(bytes), size});
      void* const data = counted->memory.get();
      return {data, counted.release(), &free_counted, c10::Device(c10::DeviceType::CPU)};
    } catch (...) {
      limit.give_back(size);
      throw;
    }
  }

  c10::Allocator& original_;
};

}  // namespace

void install_host_allocator() {
  if (installed.load() != nullptr)
    return;
  auto* const allocator = new HostAllocator(*c10::GetCPUAllocator());
  installed.store(allocator);
  c10::SetCPUAllocator(allocator);
}

void remove_host_allocator() {
  const HostAllocator* const allocator = installed.exchange(nullptr);
  // Another allocator may have been set since: it stays, and may use ours, which passes on.
  if (allocator != nullptr && c10::GetCPUAllocator() == allocator)
    c10::SetCPUAllocator(&allocator->original());
}

void set_host_limit(uint64_t allowed) {
  limit.set(static_cast<int64_t>(allowed));
}

}  // namespace torch_remote::redirect
