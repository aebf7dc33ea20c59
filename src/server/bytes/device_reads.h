#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "base/mutex.h"
#include "server/bytes/reply.h"

namespace torch_remote::server {

// Values of a device that are at least this large are sent in pieces.
constexpr uint64_t kLargeRead = uint64_t{1} << 20;
constexpr uint64_t kReadPiece = uint64_t{4} << 20;
// The blocks of a session, kReadPiece each. They count towards kMaxPinnedBytes, and stay with the
// session until torch.remote.empty_cache().
constexpr unsigned kReadBlocks = 8;

// Note [Reads from a device]
//
// A large value on a GPU is sent in pieces. A thread copies each piece to a block of pinned memory,
// on a stream of its own, while the network takes the pieces before. A block is used again when the
// client has received its bytes: until then they may have to be sent again. So a read of any size
// needs kReadBlocks blocks at most, and neither the executor nor other streams wait for it.
//
// The pieces are copied from the storage's own memory. A call that writes to the storage meanwhile
// moves it to a copy first, as on a CPU: StorageTable::prepare().

// The memory for the pieces. Thread-safe.
class ReadBlocks : public std::enable_shared_from_this<ReadBlocks> {
 public:
  // Waits for a free block, which is free again when it is destroyed. Null: end() was called.
  // `pinned`: for new blocks.
  std::shared_ptr<const at::Tensor> take(bool pinned);
  // Waits until all are free, or end() is called.
  void wait_until_free();
  // Frees the memory of those that are free.
  void empty();
  void end();

 private:
  void give_back(at::Tensor block);

  Mutex mutex_;
  CondVar changed_;
  std::vector<at::Tensor> free_ GUARDED_BY(mutex_);
  unsigned made_ GUARDED_BY(mutex_) = 0;  // free or in use
  bool is_over_ GUARDED_BY(mutex_) = false;
};

// Sends large values of a device: Note [Reads from a device]. Thread-safe.
class DeviceReads {
 public:
  struct Read {
    uint64_t request = 0;
    at::Tensor value;                   // contiguous; its stream has made it
    std::shared_ptr<const void> token;  // held until all of it is copied
  };

  using OnFailure = std::function<void(uint64_t request, std::exception_ptr failure)>;

  // `on_failure` is called on this class's thread.
  DeviceReads(Replies& replies, OnFailure on_failure)
      : replies_(replies), on_failure_(std::move(on_failure)) {}

  ~DeviceReads();
  DeviceReads(const DeviceReads&) = delete;
  DeviceReads& operator=(const DeviceReads&) = delete;

  void add(Read read);

  void empty_cache() { blocks_->empty(); }

 private:
  struct Piece;

  void run();
  bool take(Read& next);
  // False: the session is over.
  bool send(const Read& read);
  bool start_copy(const Read& read, Piece& piece);
  void finish_copy(const Read& read, Piece piece);
  c10::Stream stream_of(c10::Device device);

  Replies& replies_;
  const OnFailure on_failure_;
  const std::shared_ptr<ReadBlocks> blocks_ = std::make_shared<ReadBlocks>();
  std::vector<c10::Stream> streams_;  // one for each device; confined to the thread

  Mutex mutex_;
  CondVar changed_;
  std::deque<Read> waiting_ GUARDED_BY(mutex_);
  bool is_over_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);  // started by the first read
};

}  // namespace torch_remote::server
