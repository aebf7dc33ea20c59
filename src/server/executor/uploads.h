#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>

#include "base/mutex.h"
#include "wire/messages.h"

namespace torch_remote::server {

// Bytes of uploads that have arrived, or are on their way, and are not in a storage yet. More than
// this and the session ends: a client cannot make the server hold more host memory than that.
constexpr uint64_t kMaxStagedBytes = uint64_t{64} << 30;

// Memory that the reader thread fills with one upload. When the upload is a whole CPU storage it
// becomes that storage's memory: it is read from the socket to where it stays.
class Staging {
 public:
  Staging(uint64_t length, std::shared_ptr<std::atomic<uint64_t>> total);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  uint64_t length() const { return length_; }

  std::byte* data() { return static_cast<std::byte*>(memory_.get()); }

  // There was no memory for it: its bytes are thrown away as they come.
  bool is_lost() const { return is_lost_; }

  // For the executor, once the upload is complete.
  c10::DataPtr take_memory() { return std::move(memory_); }

 private:
  friend class Uploads;

  const uint64_t length_;
  c10::DataPtr memory_;
  bool is_lost_ = false;
  const std::shared_ptr<std::atomic<uint64_t>> total_;
  uint64_t received_ = 0;     // guarded by Uploads::mutex_
  bool is_complete_ = false;  // guarded by Uploads::mutex_
};

// Uploads on their way. Thread-safe: the reader thread fills, the executor waits.
//
// A BEGIN has its place in the order of calls; its bytes come on a lane of their own, before or
// after the executor gets to it. A client sends every BEGIN that is not inline as the first message
// of a frame, so that the reader thread learns the length without decoding anything else.
class Uploads {
 public:
  // Reader thread.
  void look_at_frame(std::span<const std::byte> payload);
  std::span<std::byte> target(uint64_t lane, uint64_t offset, uint64_t length);
  void received(uint64_t lane, uint64_t length, bool last);

  // Executor: the memory of an upload whose BEGIN has come. Once for each. Throws c10::OutOfMemoryError when there was
  // none for it.
  std::shared_ptr<Staging> take(uint64_t upload, uint64_t length);
  // Executor: until all bytes are there. Throws ConnectionError when they will never be.
  void wait(const Staging& staging);

  bool has_arrived(const Staging& staging);

  // Any thread: nothing more will come.
  void end();

 private:
  struct Lane {
    std::shared_ptr<Staging> staging;
    bool is_taken = false;
  };

  void expect(const wire::Begin& begin);

  std::vector<std::byte> thrown_away_;  // reader thread
  const std::shared_ptr<std::atomic<uint64_t>> total_ = std::make_shared<std::atomic<uint64_t>>(0);

  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<uint64_t, Lane> lanes_ GUARDED_BY(mutex_);
  bool is_over_ GUARDED_BY(mutex_) = false;
};

}  // namespace torch_remote::server
