#include "client/memory/pinned.h"

#include <cstdlib>
#include <map>

#include <pthread.h>

#include "base/mutex.h"

namespace torch_remote::client {
namespace {

constexpr size_t kPage = 4096;

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0)
      return {nullptr, c10::kCPU};
    void* data = std::aligned_alloc(kPage, (nbytes + kPage - 1) / kPage * kPage);
    TORCH_CHECK(data != nullptr, "cannot allocate ", nbytes, " bytes of pinned memory");
    MutexLock lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(data)] = nbytes;
    return {data, data, [](void* pointer) { instance().free(pointer); }, c10::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* pointer) { instance().free(pointer); };
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    default_copy_data(destination, source, count);
  }

  bool record_event(void* /*data*/, void* /*context*/, c10::Stream /*stream*/) override {
    return true;
  }

  void empty_cache() override {}

  at::HostStats get_stats() override { return {}; }

  void reset_accumulated_stats() override {}

  void reset_peak_stats() override {}

  bool owns(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    MutexLock lock(mutex_);
    auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin())
      return false;
    --after;
    return address < after->first + after->second;
  }

  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  PinnedAllocator() { pthread_atfork(&before_fork, &after_fork, &after_fork); }

  // The child of a fork frees what the parent has pinned, so no other thread may have the lock.
  static void before_fork() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.lock(); }

  static void after_fork() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.unlock(); }

  void free(void* pointer) {
    {
      MutexLock lock(mutex_);
      ranges_.erase(reinterpret_cast<uintptr_t>(pointer));
    }
    std::free(pointer);
  }

  Mutex mutex_;
  std::map<uintptr_t, size_t> ranges_ GUARDED_BY(mutex_);
};

}  // namespace

at::HostAllocator* pinned_allocator() {
  return &PinnedAllocator::instance();
}

bool is_pinned(const void* data) {
  return PinnedAllocator::instance().owns(data);
}

}  // namespace torch_remote::client
