#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/capture/record.h"
#include "client/process/lines.h"
#include "wire/messages.h"

namespace torch_remote::client {

// Note [Memory history]
//
// While torch.remote.memory._record_memory_history() is on, the client notes every storage that it
// makes and frees, with the Python stack of the thread. A snapshot then has CUDA's schema: each
// storage is a segment of its own, and its address is the one that PyTorch sees as the data
// pointer. While recording is off, a storage costs one branch when it is made and one when it is
// freed. What was noted of storages that still live stays after recording is off, as with CUDA.

// The lines of a stack, the innermost first. Null: not recorded.
using Stack = std::shared_ptr<const std::vector<LineId>>;

enum class MemoryEventKind : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kOutOfMemory,
  kSnapshot,
};
constexpr size_t kMemoryEventKinds = 7;

struct MemoryEvent {
  MemoryEventKind kind = MemoryEventKind::kAlloc;
  uint8_t stream = 0;
  uint64_t address = 0;  // kOutOfMemory: the bytes that were free
  uint64_t bytes = 0;
  int64_t time_us = 0;  // since 1970
  Stack stack;
};

// Which stacks are recorded. Each value includes the ones before it.
enum class RecordedStacks : uint8_t {
  kNone,
  kLive,   // where the storages that live were made
  kMade,   // also those of the events that make storages
  kFreed,  // also those of the events that free storages
};

struct HistoryOptions {
  bool is_on = false;
  RecordedStacks stacks = RecordedStacks::kNone;
  uint64_t max_events = 0;  // of each device; older ones are forgotten
  bool clears = false;
  std::array<bool, kMemoryEventKinds> skipped{};  // by MemoryEventKind
};

// Storages take whole units of this in a snapshot.
constexpr uint64_t kSegmentUnit = 512;

// Thread-safe.
class MemoryHistory {
 public:
  static MemoryHistory& instance();  // leaks: deleters run at exit

  // Recording is on, stacks of live storages are kept, or a profile has memory.
  static bool is_needed() { return is_needed_.load(std::memory_order_relaxed); }

  void set(const HistoryOptions& options);
  // torch.profiler wants to know what is made and freed: client/memory/storage.h.
  void set_profiled(bool is_profiled);

  // Call these only while is_needed(). No GIL, and no other lock is taken inside.
  void note_made(const StorageRecord& record);
  void note_freed(const StorageRecord& record, uint64_t address, uint64_t bytes);
  // `line` 0: this thread's call failed.
  void note_out_of_memory(const void* session, uint8_t device, const wire::Error& error,
                          LineId line);
  // `bytes` are those of the live storages.
  void note_snapshot(const void* session, uint8_t device, uint64_t bytes);

  std::vector<MemoryEvent> events(const void* session, uint8_t device);
  // Where a live storage was made; null: not recorded.
  Stack stack_of(uint64_t address);

 private:
  using Device = std::pair<const void*, uint8_t>;  // of a session

  struct ByLines {
    bool operator()(const Stack& a, const Stack& b) const { return *a < *b; }
  };

  // Null if stacks of this kind are not recorded. `line` 0: where this thread is.
  Stack take_stack(RecordedStacks kind, LineId line = 0);
  void add(const Device& device, MemoryEvent event) REQUIRES(mutex_);
  void update_need() REQUIRES(mutex_);

  static inline std::atomic<bool> is_needed_{false};

  Mutex mutex_;
  HistoryOptions options_ GUARDED_BY(mutex_);
  bool is_profiled_ GUARDED_BY(mutex_) = false;
  std::map<Device, std::deque<MemoryEvent>> events_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Stack> live_ GUARDED_BY(mutex_);  // by address
  std::set<Stack, ByLines> stacks_ GUARDED_BY(mutex_);           // one of each
};

}  // namespace torch_remote::client
