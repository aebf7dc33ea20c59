#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <c10/core/Storage.h>

#include "base/hash.h"
#include "base/mutex.h"
#include "server/bytes/upload_memory.h"
#include "server/cache/upload_cache.h"
#include "wire/messages.h"

namespace torch_remote::server {

// Limit for bytes of uploads, announced or arrived, that are not in a storage yet. It bounds the
// host memory that a client can make the server use; more ends the session.
constexpr uint64_t kMaxStagedBytes = uint64_t{64} << 30;
// Limit for uploads that have begun, of which the bytes or the BEGIN are still to come. Our client
// is stopped earlier by its window for frames: each BEGIN is alone in a frame.
constexpr uint64_t kMaxUploadLanes = uint64_t{1} << 20;
// With serve --max-memory, uploads that are not in a storage yet may have as many bytes as
// storages, at least this many. They are not part of the same sum: a client may upload before the
// server has freed what the client freed before. More are out of memory.
constexpr uint64_t kLeastStagedBytes = uint64_t{4} << 30;

struct UploadLimits {
  uint64_t bytes = UINT64_MAX;       // not in a storage yet; more are out of memory
  uint64_t lanes = kMaxUploadLanes;  // more are a ProtocolError

  static UploadLimits for_max_memory(uint64_t bytes) {
    return {std::max(bytes, kLeastStagedBytes), kMaxUploadLanes};
  }
};

// Memory that the reader thread fills with one upload. An upload of a whole CPU storage is not
// copied: this becomes the storage's memory. Otherwise the bytes are copied as they arrive.
class Staging {
 public:
  // Null `source`: there is no memory for it.
  Staging(uint64_t length, UploadMemory* source, std::shared_ptr<std::atomic<uint64_t>> total);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  uint64_t length() const { return length_; }

  std::byte* data() { return static_cast<std::byte*>(memory_.mutable_data()); }

  const c10::Storage& memory() const { return memory_; }

  // There was no memory for it, so arriving bytes are dropped.
  bool is_lost() const { return is_lost_; }

  // For the executor, after the upload is complete.
  c10::Storage take_memory() { return std::move(memory_); }

 private:
  friend class Uploads;

  const uint64_t length_;
  c10::Storage memory_;
  bool is_lost_ = false;
  bool is_saved_ = false;  // the reader thread gives its bytes to the cache
  const std::shared_ptr<std::atomic<uint64_t>> total_;
  uint64_t received_ = 0;            // guarded by Uploads::mutex_
  bool is_complete_ = false;         // guarded by Uploads::mutex_
  bool is_copied_in_parts_ = false;  // guarded by Uploads::mutex_
};

// Uploads that are arriving. Thread-safe: the reader thread fills them, the executor waits.
//
// A BEGIN is ordered among the calls. Its bytes come on their own lane, before or after the
// executor reaches it. A client sends every BEGIN that is not inline as the first message of a
// frame, so that the reader thread finds the length without decoding more.
class Uploads {
 public:
  // Null `cache`: there is none.
  explicit Uploads(bool pinned = false, UploadLimits limits = {}, UploadCache* cache = nullptr)
      : memory_(pinned), limits_(limits), cache_(cache) {}

  // Reader thread.
  void expect_from(std::span<const std::byte> payload);
  std::span<std::byte> target(uint64_t lane, uint64_t offset, uint64_t length);
  // True: the executor can do something with what has arrived.
  bool received(uint64_t lane, uint64_t length, bool last);

  // Executor: the memory of an upload, once, after its BEGIN. Throws c10::OutOfMemoryError if there
  // was none for it.
  std::shared_ptr<Staging> take(uint64_t upload, uint64_t length);
  // Executor: will copy the bytes as they arrive.
  void copy_in_parts(Staging& staging);
  // Executor: waits for more bytes than `known`, or for all, and returns how many have arrived.
  // Throws ConnectionError when the connection ends before.
  uint64_t wait_for_more(const Staging& staging, uint64_t known);
  // The same without waiting.
  uint64_t arrived_bytes(const Staging& staging);
  bool has_arrived(const Staging& staging);
  // Executor: an upload that the cache has, complete. Null: it has none, or there is no memory.
  std::shared_ptr<Staging> load(const wire::Digest& digest, uint64_t length);
  // Executor: what the cache has.
  std::vector<wire::CachedEntry> cached();

  UploadMemory& memory() { return memory_; }

  // Any thread: no more bytes will come.
  void end();

 private:
  struct Lane {
    std::shared_ptr<Staging> staging;
    bool is_taken = false;
  };

  void expect(const wire::Begin& begin);
  void save(uint64_t lane, uint64_t length);

  UploadMemory memory_;
  const UploadLimits limits_;
  std::vector<std::byte> ignored_bytes_;  // reader thread
  const std::shared_ptr<std::atomic<uint64_t>> total_ = std::make_shared<std::atomic<uint64_t>>(0);

  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<uint64_t, Lane, NameHash> lanes_ GUARDED_BY(mutex_);
  bool is_over_ GUARDED_BY(mutex_) = false;

  UploadCache* const cache_;
};

}  // namespace torch_remote::server
