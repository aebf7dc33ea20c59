#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "transport/stream.h"

// Connections inside this process.
namespace torch_remote::transport {

inline constexpr size_t kMemoryCapacity = size_t{1} << 20;

// One direction: a ring of bytes. Thread-safe.
class MemoryRing {
 public:
  explicit MemoryRing(size_t capacity) : bytes_(std::max<size_t>(capacity, 1)) {}

  size_t read_some(std::span<std::byte> into) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (used_ == 0 && !writer_closed_ && !reader_closed_)
      changed_.wait(mutex_);
    if (reader_closed_)
      return 0;
    const size_t count = std::min({into.size(), used_, bytes_.size() - start_});
    std::memcpy(into.data(), bytes_.data() + start_, count);
    start_ = (start_ + count) % bytes_.size();
    used_ -= count;
    changed_.notify_all();
    return count;
  }

  void write(std::span<const std::byte> from) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!from.empty())
      from = from.subspan(write_some(from));
  }

  void close_writer() noexcept EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    writer_closed_ = true;
    changed_.notify_all();
  }

  void close_reader() noexcept EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    reader_closed_ = true;
    changed_.notify_all();
  }

 private:
  size_t write_some(std::span<const std::byte> from) REQUIRES(mutex_) {
    while (used_ == bytes_.size() && !writer_closed_ && !reader_closed_)
      changed_.wait(mutex_);
    if (writer_closed_)
      throw ConnectionError("the connection was shut down on this side");
    if (reader_closed_)
      throw ConnectionError("the peer has closed the connection");
    const size_t end = (start_ + used_) % bytes_.size();
    const size_t count = std::min({from.size(), bytes_.size() - used_, bytes_.size() - end});
    std::memcpy(bytes_.data() + end, from.data(), count);
    used_ += count;
    changed_.notify_all();
    return count;
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::byte> bytes_ GUARDED_BY(mutex_);
  size_t start_ GUARDED_BY(mutex_) = 0;
  size_t used_ GUARDED_BY(mutex_) = 0;
  bool writer_closed_ GUARDED_BY(mutex_) = false;
  bool reader_closed_ GUARDED_BY(mutex_) = false;
};

// Thread-safe. Both ends own the rings, because either may be destroyed first.
class MemoryStream : public Stream {
 public:
  MemoryStream(std::shared_ptr<MemoryRing> incoming, std::shared_ptr<MemoryRing> outgoing)
      : incoming_(std::move(incoming)), outgoing_(std::move(outgoing)) {}

  ~MemoryStream() override { MemoryStream::shutdown(); }

  size_t read_some(std::span<std::byte> into) override { return incoming_->read_some(into); }

  void write(std::span<const std::span<const std::byte>> parts) override {
    for (const std::span<const std::byte> part : parts)
      outgoing_->write(part);
  }

  void shutdown() noexcept override {
    outgoing_->close_writer();
    incoming_->close_reader();
  }

  std::string peer() const override { return "memory"; }

 private:
  const std::shared_ptr<MemoryRing> incoming_;
  const std::shared_ptr<MemoryRing> outgoing_;
};

// The two ends. A write waits while its direction holds `capacity` bytes.
inline std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> memory_pair(
    size_t capacity = kMemoryCapacity) {
  auto there = std::make_shared<MemoryRing>(capacity);
  auto back = std::make_shared<MemoryRing>(capacity);
  return {std::make_unique<MemoryStream>(back, there), std::make_unique<MemoryStream>(there, back)};
}

}  // namespace torch_remote::transport
