#include "client/memory/downloads.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/strides.h>

#include "base/block_pool.h"
#include "client/process/process.h"
#include "client/process/recording.h"
#include "client/process/records.h"
#include "client/session/pending.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

// The allocator that the blocks come from, the first one that is asked for.
c10::Allocator& allocator() {
  static c10::Allocator* const allocator = c10::GetCPUAllocator();
  return *allocator;
}

// Tensors that are used. A DataPtr whose context is not its memory cannot be cloned lazily, so the
// size of a block is found by its address.
AddressTable<BlockPool::Block>& used_blocks() {
  static auto* const used = new AddressTable<BlockPool::Block>;
  return *used;
}

}  // namespace

DownloadMemory::DownloadMemory()
    : pool_({[](size_t nbytes) { return allocator().raw_allocate(nbytes); },
             [](void* memory) { allocator().raw_deallocate(memory); }},
            kMaxKeptBytes) {}

DownloadMemory& DownloadMemory::instance() {
  static auto* const memory = new DownloadMemory;
  return *memory;
}

c10::DataPtr DownloadMemory::allocate(size_t nbytes) {
  const BlockPool::Block block = pool_.take(nbytes);
  used_blocks().add(block.memory, block);
  return {block.memory, block.memory, &give_back, c10::kCPU};
}

// The deleter of the tensors. In the child of a fork another thread may have held the lock.
void DownloadMemory::give_back(void* memory) {
  if (in_forked_child())
    return allocator().raw_deallocate(memory);
  instance().pool_.keep(used_blocks().take(memory));
}

void DownloadMemory::empty() {
  if (!in_forked_child())
    pool_.empty();
}

at::Tensor empty_for_download(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              at::ScalarType dtype) {
  const size_t nbytes = c10::multiply_integers(sizes) * c10::elementSize(dtype);
  // An allocator without a raw deleter frees by a context, which our deleter would not have.
  if (nbytes < kSmallestKept || allocator().raw_deleter() == nullptr)
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype));
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes,
                       DownloadMemory::instance().allocate(nbytes), c10::GetCPUAllocator(), true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

Download start_download(const at::Tensor& tensor, std::span<std::byte> into,
                        std::shared_ptr<const void> owner) {
  check_not_recording("a read");
  StorageRecord& record = *record_of(tensor);
  Session& session = *session_of(record);
  Download download{&session, session.make_request(into, std::move(owner))};
  download.request->device = record.server_device;
  download.request->storage = record.name;
  wire::Read read;
  read.request = download.request->id;
  read.storage = record.name;
  read.offset = offset_of(*tensor.unsafeGetTensorImpl(), record);
  read.spec = marshal::spec_of(tensor);
  const bool is_announced = record.announced.load(std::memory_order_relaxed);
  const CallSite site{is_announced ? 0 : current_line(), record.server_device};
  try {
    Submission at(session);
    at.announce(record, site);
    at.use_current_stream(record.server_device);
    download.call = at.last_call();
    encode(at.writer(), read);
  } catch (...) {  // or the server could still answer, into memory that is freed by then
    session.requests().forget(*download.request);
    throw;
  }
  return download;
}

std::span<std::byte> memory_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.numel() == 0)
    return {};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    last += (tensor.size(i) - 1) * tensor.stride(i);
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
  return {begin, static_cast<size_t>(last + 1) * tensor.itemsize()};
}

void keep_pending(const Download& download, const c10::Storage& destination) {
  auto& pending = PendingDownloads::instance();
  const auto oldest = pending.add({download.session, download.request, destination});
  if (!oldest.has_value())
    return;
  if (!oldest->session->link().is_lost())
    oldest->session->wait_quietly(oldest->request, "a download");
  pending.drop_good();
}

void finish_downloads_to(const at::Tensor& tensor) {
  auto& pending = PendingDownloads::instance();
  if (pending.is_empty())
    return;
  for (const auto& entry : pending.writers_to(memory_of(tensor)))
    if (!entry.session->link().is_lost())
      entry.session->wait_quietly(entry.request, "a download");
}

at::Tensor empty_for(const at::Tensor& tensor) {
  if (tensor.nbytes() >= kSmallestKept)
    return empty_for_download(tensor.sizes(), c10::contiguous_strides(tensor.sizes()),
                              tensor.scalar_type());
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

void finish_downloads(Session& session) {
  auto& pending = PendingDownloads::instance();
  for (const RequestPtr& request : pending.of(session))
    if (!request->done)
      session.wait_quietly(request, "a download");
  if (!pending.is_empty())
    pending.drop_good();
}

bool are_downloads_here(Session& session) {
  const auto pending = PendingDownloads::instance().of(session);
  return std::ranges::all_of(pending,
                             [](const RequestPtr& request) { return request->done.load(); });
}

PendingRead::PendingRead(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(own_record(*tensor.unsafeGetTensorImpl()) != nullptr,
                              "torch_remote.read(): this tensor wraps another one, as inside "
                              "torch.vmap or torch.compile, and has no value of its own; read "
                              "what the transformed function returns");
  memory_ = empty_for(tensor);
  if (tensor.numel() == 0)
    return;
  download_ = start_download(tensor, memory_of(memory_), std::make_shared<at::Tensor>(memory_));
}

bool PendingRead::is_done() const {
  return download_.request == nullptr || download_.request->done ||
         download_.session->link().is_lost();
}

bool PendingRead::wait_for(std::optional<std::chrono::milliseconds> time) const {
  if (download_.request == nullptr || download_.request->done)
    return true;
  return download_.session->wait_quietly(download_.request, "a value", time);
}

at::Tensor PendingRead::result() const {
  wait_for(std::nullopt);
  if (download_.request != nullptr && download_.request->failed)
    download_.session->raise_failed(*download_.request);
  return at::from_blob(
      memory_.mutable_data_ptr(), memory_.sizes(), [memory = memory_](void*) {}, memory_.options());
}

void PendingRead::signal_when_done(const std::shared_ptr<DoneSignal>& signal) const {
  if (download_.request == nullptr)
    return signal->set();
  download_.session->requests().signal_when_done(*download_.request, signal);
  if (download_.session->link().is_lost())  // signal_all() may have come before
    signal->set();
}

}  // namespace torch_remote::client
