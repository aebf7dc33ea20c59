#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "client/capture/record.h"
#include "client/process/context.h"
#include "client/process/lines.h"
#include "client/session/device_memory.h"
#include "client/session/sent_programs.h"
#include "client/session/signature_table.h"
#include "wire/messages.h"
#include "wire/streams.h"

namespace torch_remote::client {

// Counters of one session, for statistics only: relaxed.
struct Counters {
  using Count = std::atomic<uint64_t>;
  Count calls{0};       // CALL messages encoded
  Count syncs{0};       // times a thread waited for the server
  Count bytes_sent{0};  // messages at encoding, headers when a frame is taken
  Count signatures_sent{0};
  Count inferred_by_meta{0};    // cache misses that a Python Meta kernel answered
  Count inferred_by_server{0};  // cache misses that the server answered
};

// A frame that has this many bytes is cut before the next message, or when the writer takes it.
constexpr size_t kFrameTarget = 64 << 10;
// Storages with this many bytes that wait to be freed are freed before the next message.
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

  uint64_t program() { return programs_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> storages_{1};
  std::atomic<uint64_t> generators_{wire::kFirstGenerator};
  std::atomic<uint64_t> events_{1};
  std::atomic<uint64_t> programs_{1};
};

// Messages that are encoded one behind the other, and what their reader knows after the last. Those
// of a session are under its submit lock, so nothing here has a lock.
struct MessageBuffer {
  struct CutFrame {
    std::vector<std::byte> payload;
    uint32_t calls;
  };

  explicit MessageBuffer(CallLines& call_lines) : lines(call_lines) {}

  MessageBuffer(const MessageBuffer&) = delete;
  MessageBuffer& operator=(const MessageBuffer&) = delete;

  // All bytes that were ever appended.
  uint64_t encoded() const { return encoded_before + writer.size(); }

  // Starts a new frame.
  void cut_frame();
  // What follows for the device goes to this stream.
  void use_stream(uint8_t device, uint8_t stream);
  // The number of the message that follows.
  uint64_t number(CallSite site);

  wire::Writer writer;
  wire::NameState names;
  uint32_t calls = 0;  // numbered messages in writer
  std::deque<CutFrame> frames;
  uint64_t encoded_before = 0;  // bytes of all frames that were cut
  SignatureTable signatures;
  SentPrograms programs;
  ContextMirror context;
  std::array<uint8_t, wire::kMaxDevices> streams{};  // the last STREAM of each
  uint64_t call_number = 0;                          // the last
  uint64_t thread = 0;                               // the last THREAD
  CallLines& lines;
};

// The messages of a session in one total order, until the connection's writer thread takes them as
// frames, and what depends on that order: names, numbers of calls, threads, context, frees. A
// Submission (client/session/submission.h) appends. The submit lock is on the path of every call.
// Thread-safe.
class MessageOrder {
 public:
  explicit MessageOrder(Counters& counters) : counters_(counters) {}

  template <typename Use>
  auto with_signatures(Use&& use) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return use(messages_.signatures);
  }

  Counters& counters() { return counters_; }

  NewNames& new_names() { return new_names_; }

  ProgramSites& program_sites() { return program_sites_; }

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
  std::vector<std::byte> take_frame(uint32_t& calls) EXCLUDES(mutex_);
  // For a session that has ended: frees everything.
  void clear() EXCLUDES(mutex_);

 private:
  friend class Submission;

  // Before something is appended: frees that must not wait, and the end of a frame that is full.
  void make_room() REQUIRES(mutex_) {
    const bool is_full = messages_.writer.size() >= kFrameTarget;
    if (is_full || freed_bytes_.load(std::memory_order_relaxed) >= kFreedAtOnce) [[unlikely]]
      append_frees();
    if (is_full) [[unlikely]]
      messages_.cut_frame();
  }

  // After it: so many bytes, with so many calls of operators.
  void count(uint64_t bytes, uint32_t calls) REQUIRES(mutex_) {
    submitted_.store(messages_.call_number, std::memory_order_relaxed);
    counters_.calls += calls;
    counters_.bytes_sent += bytes;
    buffered_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }

  void append_frees() REQUIRES(mutex_);
  void forget_frees() noexcept;

  Counters& counters_;
  NewNames new_names_;
  ProgramSites program_sites_;
  std::array<std::atomic<c10::DeviceIndex>, wire::kMaxDevices> indices_{};  // by device
  std::array<DeviceMemory, wire::kMaxDevices> memory_;                      // by device
  std::atomic<StorageRecord*> frees_{nullptr};  // Note [Frees in order] in message_order.cpp
  std::atomic<uint64_t> freed_bytes_{0};        // roughly: of the storages in that list
  std::atomic<uint64_t> submitted_{0};          // the last call, for readers without the lock
  std::atomic<uint64_t> buffered_bytes_{0};
  CallLines lines_;  // written under mutex_

  Mutex mutex_;  // the submit lock
  MessageBuffer messages_ GUARDED_BY(mutex_){lines_};
  std::vector<uint64_t> free_names_ GUARDED_BY(mutex_);

  Mutex lines_mutex_;  // for readers: the reader thread must not take the submit lock
};

inline void MessageBuffer::use_stream(uint8_t device, uint8_t stream) {
  if (streams[device] == stream) [[likely]]
    return;
  streams[device] = stream;
  encode(writer, wire::StreamMessage{wire::StreamAction::kUse, device, stream});
}

inline uint64_t MessageBuffer::number(CallSite site) {
  site.thread = static_cast<uint32_t>(thread);
  lines.put(++call_number, site);
  ++calls;
  return call_number;
}

}  // namespace torch_remote::client
