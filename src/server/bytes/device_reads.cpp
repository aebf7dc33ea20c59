#include "server/bytes/device_reads.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/platform.h"

namespace torch_remote::server {
namespace {

// Pageable memory if there is no pinned memory: copies to it wait.
at::Tensor make_block(bool pinned) {
  const auto options = at::TensorOptions().dtype(at::kByte);
  const int64_t size = kReadPiece;
  if (!pinned)
    return at::empty({size}, options);
  try {
    return at::empty({size}, options.pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty({size}, options);
  }
}

}  // namespace

std::shared_ptr<const at::Tensor> ReadBlocks::take(bool pinned) {
  at::Tensor block;
  {
    MutexLock lock(mutex_);
    while (!is_over_ && free_.empty() && made_ == kReadBlocks)
      changed_.wait(mutex_);
    if (is_over_)
      return nullptr;
    if (free_.empty()) {
      ++made_;
    } else {
      block = std::move(free_.back());
      free_.pop_back();
    }
  }
  try {
    if (!block.defined())
      block = make_block(pinned);
  } catch (...) {
    {
      MutexLock lock(mutex_);
      --made_;
    }
    changed_.notify_all();
    throw;
  }
  return {new at::Tensor(std::move(block)), [blocks = shared_from_this()](at::Tensor* used) {
            blocks->give_back(std::move(*used));
            delete used;
          }};
}

void ReadBlocks::give_back(at::Tensor block) {
  {
    MutexLock lock(mutex_);
    free_.push_back(std::move(block));
  }
  changed_.notify_all();
}

void ReadBlocks::wait_until_free() {
  MutexLock lock(mutex_);
  while (!is_over_ && free_.size() != made_)
    changed_.wait(mutex_);
}

void ReadBlocks::empty() {
  std::vector<at::Tensor> given_up;  // freed without the lock
  MutexLock lock(mutex_);
  given_up.swap(free_);
  made_ -= static_cast<unsigned>(given_up.size());
}

void ReadBlocks::end() {
  {
    MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
}

// A part of a value on its way to a block.
struct DeviceReads::Piece {
  uint64_t offset = 0;
  uint64_t length = 0;
  std::shared_ptr<const at::Tensor> block;
  std::optional<c10::Event> copied;  // none: a CPU's value, which is copied at once
};

DeviceReads::~DeviceReads() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    is_over_ = true;
    thread.swap(thread_);
  }
  changed_.notify_all();
  blocks_->end();
  if (thread.joinable())
    thread.join();
}

void DeviceReads::add(Read read) {
  const uint64_t request = read.request;
  try {
    MutexLock lock(mutex_);
    if (!thread_.joinable() && !is_over_)
      thread_ = std::thread([this] { run(); });
    waiting_.push_back(std::move(read));
  } catch (const std::system_error&) {  // no thread could be started
    return on_failure_(request, std::current_exception());
  }
  changed_.notify_all();
}

bool DeviceReads::take(Read& next) {
  MutexLock lock(mutex_);
  while (!is_over_ && waiting_.empty())
    changed_.wait(mutex_);
  if (is_over_)
    return false;
  next = std::move(waiting_.front());
  waiting_.pop_front();
  return true;
}

void DeviceReads::run() {
  begin_worker_thread("tr-reads");
  const c10::InferenceMode inference_mode;
  for (Read next; take(next); next = {}) {
    try {
      if (!send(next))
        return;
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      blocks_->wait_until_free();  // the error must not overtake pieces of the same request
      try {
        on_failure_(next.request, failure);
      } catch (const std::exception&) {
        // The session has ended: nobody is left to be answered.
      }
    }
  }
}

// Starts the copy of a piece before it waits for the one before.
bool DeviceReads::send(const Read& read) {
  const uint64_t total = read.value.nbytes();
  Piece before;
  for (uint64_t offset = 0; offset < total; offset += kReadPiece) {
    Piece piece{offset, std::min(kReadPiece, total - offset), nullptr, std::nullopt};
    if (!start_copy(read, piece))
      return false;
    if (before.block != nullptr)
      finish_copy(read, std::move(before));
    before = std::move(piece);
  }
  finish_copy(read, std::move(before));
  return true;
}

bool DeviceReads::start_copy(const Read& read, Piece& piece) {
  const c10::Device device = read.value.device();
  piece.block = blocks_->take(!device.is_cpu());
  if (piece.block == nullptr)
    return false;
  const auto length = static_cast<int64_t>(piece.length);
  auto* const bytes = static_cast<std::byte*>(read.value.data_ptr()) + piece.offset;
  const at::Tensor from =
      at::from_blob(bytes, {length}, at::TensorOptions().dtype(at::kByte).device(device));
  at::Tensor to = piece.block->narrow(0, 0, length);
  if (device.is_cpu()) {
    to.copy_(from);
    return true;
  }
  const c10::Stream stream = stream_of(device);
  const c10::StreamGuard guard(stream);
  to.copy_(from, true);
  piece.copied.emplace(device.type());
  piece.copied->record(stream);
  return true;
}

void DeviceReads::finish_copy(const Read& read, Piece piece) {
  if (piece.copied)
    piece.copied->synchronize();
  const std::span<const std::byte> bytes(
      static_cast<const std::byte*>(piece.block->const_data_ptr()), piece.length);
  const bool is_last = piece.offset + piece.length == read.value.nbytes();
  replies_.part(read.request, bytes, std::move(piece.block), {piece.offset, is_last});
}

c10::Stream DeviceReads::stream_of(c10::Device device) {
  const auto found = std::ranges::find_if(
      streams_, [&](const c10::Stream& stream) { return stream.device() == device; });
  if (found != streams_.end())
    return *found;
  streams_.push_back(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device, -1));
  return streams_.back();
}

}  // namespace torch_remote::server
