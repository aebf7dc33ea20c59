#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "client/capture/capture.h"
#include "client/process/context.h"
#include "client/process/current_stream.h"
#include "client/process/lines.h"
#include "client/process/threads.h"
#include "client/session/counters.h"
#include "client/session/device_memory.h"
#include "client/session/signature_table.h"
#include "wire/messages.h"
#include "wire/streams.h"

namespace torch_remote::client {

// A frame is cut when it has this many bytes.
constexpr size_t kFrameTarget = 64 << 10;
constexpr uint64_t kFreedAtOnce = 1 << 20;

// Names that the client chooses: never used twice in a session. Thread-safe.
class NewNames {
 public:
  // The first of `count` names in a row.
  uint64_t storages(uint64_t count = 1) {
    return storages_.fetch_add(count, std::memory_order_relaxed);
  }

  uint64_t generator() { return generators_.fetch_add(1, std::memory_order_relaxed); }

  uint64_t event() { return events_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> storages_{1};
  std::atomic<uint64_t> generators_{wire::kFirstGenerator};
  std::atomic<uint64_t> events_{1};
};

// The messages of a session in one total order, until the connection's writer thread takes them as
// frames, and what depends on that order: names, numbers of calls, threads, context, frees. The
// submit lock is on the path of every call. Thread-safe.
class CallStream {
 public:
  explicit CallStream(Counters& counters) : counters_(counters) {}

  // Appends messages in one critical section: `append(writer, names, signatures)` returns whether
  // it has appended anything, `calls` is the number of operator calls.
  template <typename Append>
  void append(uint32_t calls, Append&& append);

  // --- within append()

  // What follows for the device goes to this thread's current stream.
  void use_current_stream(uint8_t device) {
    if (are_streams_used()) [[unlikely]]
      use_stream(device, current_stream(index_of(device)));
  }

  struct Numbered {
    uint64_t call;
    uint64_t thread;
  };

  // Numbers the CALL, QUERY kCall or kCheckedCall, BEGIN or RESIZE that follows.
  Numbered number_call(CallSite site) NO_THREAD_SAFETY_ANALYSIS {
    use_current_stream(site.device);
    return number_message(site);
  }

  uint64_t last_call() const NO_THREAD_SAFETY_ANALYSIS { return call_number_; }

  // Tells the server what of the context has changed since it was last told.
  void mirror_context(wire::Writer& writer) NO_THREAD_SAFETY_ANALYSIS {
    context_.append_changes(writer);
  }

  // Appends a RESIZE that creates the storage on the server. False: the server knows it already.
  bool announce(wire::Writer& writer, StorageRecord& record, CallSite site);
  // Starts a new frame, because the BEGIN of a bulk upload must be first in its frame.
  void cut_frame() REQUIRES(mutex_);

  // --- any time

  template <typename Use>
  auto with_signatures(Use&& use) {
    MutexLock lock(mutex_);
    return use(signatures_);
  }

  Counters& counters() { return counters_; }

  NewNames& new_names() { return new_names_; }

  // Which remote:k a device of the server is, or was before its machine was stopped.
  void set_index(uint8_t device, c10::DeviceIndex index) { indices_[device] = index; }

  c10::DeviceIndex index_of(uint8_t device) const {
    return indices_[device].load(std::memory_order_relaxed);
  }

  DeviceMemory& memory(uint8_t device) { return memory_[device]; }

  // Deleters: any thread, no lock, no I/O. `is_lost`: nothing will be sent any more.
  void queue_free(StorageRecord* record, bool is_lost) noexcept;

  // The number of the last call, upload or resize; 0: none.
  uint64_t submitted() const { return submitted_.load(std::memory_order_relaxed); }

  uint64_t buffered_bytes() const { return buffered_bytes_.load(std::memory_order_relaxed); }

  // Nothing if the call is too long ago.
  std::optional<CallSite> site_of(uint64_t call);
  // How many calls and uploads after `first` up to `last` this thread has made.
  uint64_t count_calls(uint64_t first, uint64_t last, uint64_t thread);

  // Writer thread: the next frame and its number of numbered messages; empty if there is none.
  std::vector<std::byte> take_frame(uint32_t& calls);
  // For a session that has ended: frees everything.
  void clear();

 private:
  struct Frame {
    std::vector<std::byte> payload;
    uint32_t calls;
  };

  void use_stream(uint8_t device, uint8_t stream) NO_THREAD_SAFETY_ANALYSIS {
    if (streams_[device] == stream) [[likely]]
      return;
    streams_[device] = stream;
    encode(writer_, wire::StreamMessage{wire::StreamAction::kUse, device, stream});
  }

  // As number_call(), for a message that is for no stream.
  Numbered number_message(CallSite site) NO_THREAD_SAFETY_ANALYSIS {
    site.thread = static_cast<uint32_t>(thread_);
    lines_.put(++call_number_, site);
    ++calls_;
    return {call_number_, thread_};
  }

  void append_frees() REQUIRES(mutex_);
  void forget_frees() noexcept;

  Counters& counters_;
  NewNames new_names_;
  std::array<std::atomic<c10::DeviceIndex>, wire::kMaxDevices> indices_{};  // by device
  std::array<DeviceMemory, wire::kMaxDevices> memory_;                      // by device
  std::atomic<StorageRecord*> frees_{nullptr};  // Note [Frees in order] in client/session/frees.cpp
  std::atomic<uint64_t> freed_bytes_{0};        // roughly: of the storages in that list
  std::atomic<uint64_t> submitted_{0};          // call_number_, for readers without the lock
  std::atomic<uint64_t> buffered_bytes_{0};

  Mutex mutex_;  // the submit lock
  wire::Writer writer_ GUARDED_BY(mutex_);
  wire::NameState names_ GUARDED_BY(mutex_);
  uint32_t calls_ GUARDED_BY(mutex_) = 0;    // numbered messages in writer_
  uint64_t encoded_ GUARDED_BY(mutex_) = 0;  // bytes of the frames cut so far
  std::deque<Frame> frames_ GUARDED_BY(mutex_);
  SignatureTable signatures_ GUARDED_BY(mutex_);
  std::vector<uint64_t> free_names_ GUARDED_BY(mutex_);
  ContextMirror context_ GUARDED_BY(mutex_);
  std::array<uint8_t, wire::kMaxDevices> streams_ GUARDED_BY(mutex_){};  // the last STREAM of each
  uint64_t call_number_ GUARDED_BY(mutex_) = 0;
  uint64_t thread_ GUARDED_BY(mutex_) = 0;  // the last THREAD
  CallLines lines_;                         // written under mutex_

  Mutex lines_mutex_;  // for readers: the reader thread must not take the submit lock
};

template <typename Append>
void CallStream::append(uint32_t calls, Append&& append) {
  MutexLock lock(mutex_);
  if (freed_bytes_.load(std::memory_order_relaxed) >= kFreedAtOnce)
    append_frees();
  const uint64_t before = encoded_ + writer_.size();
  if (const uint64_t thread = current_thread(); thread != thread_) [[unlikely]]
    wire::encode_thread(writer_, thread_ = thread);
  if (!append(writer_, names_, signatures_))
    return;
  const uint64_t added = encoded_ + writer_.size() - before;
  submitted_.store(call_number_, std::memory_order_relaxed);
  counters_.calls += calls;
  counters_.bytes_sent += added;
  buffered_bytes_.fetch_add(added, std::memory_order_relaxed);
  if (writer_.size() >= kFrameTarget) {
    append_frees();
    cut_frame();
  }
}

}  // namespace torch_remote::client
