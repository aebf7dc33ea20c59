#include "server/executor/storage_fill.h"

#include <algorithm>

#include "server/executor/entry.h"

namespace torch_remote::server {
namespace {

// What is read at once for a GPU.
constexpr uint64_t kFillBlock = uint64_t{32} << 20;

marshal::TensorRecipe all_bytes(uint64_t nbytes) {
  marshal::TensorRecipe view;
  view.dtype = at::kByte;
  view.extent = nbytes;
  view.sizes = {static_cast<int64_t>(nbytes)};
  view.strides = {1};
  return view;
}

// Of two blocks one is read into while the other is copied, if they are pinned.
void fill_device(const at::Tensor& whole, UploadMemory& staging, const ReadBytes& read) {
  const auto nbytes = static_cast<uint64_t>(whole.numel());
  for (uint64_t offset = 0; offset < nbytes; offset += kFillBlock) {
    const uint64_t length = std::min(kFillBlock, nbytes - offset);
    const c10::Storage block = staging.allocate(length);
    read(offset, {static_cast<std::byte*>(block.mutable_data()), static_cast<size_t>(length)});
    const at::Tensor bytes = bytes_of(block, 0, length);
    whole.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(length))
        .copy_(bytes, bytes.is_pinned());
  }
}

}  // namespace

void fill(StorageTable& storages, Streams& streams, UploadMemory& staging, Entry& entry,
          const ReadBytes& read) {
  if (entry.is_pinned())
    throw Refused("no file is read into a storage whose memory a graph uses");
  storages.prepare(entry, true);
  try {
    const at::Tensor whole = storages.resolve(entry, all_bytes(entry.nbytes), 0);
    if (entry.device.is_cpu())
      return read(0, {static_cast<std::byte*>(whole.mutable_data_ptr()),
                      static_cast<size_t>(entry.nbytes)});
    const Streams::Scope scope(streams, entry.number, entry.stream);
    fill_device(whole, staging, read);
  } catch (...) {
    storages.release(entry);
    throw;
  }
}

}  // namespace torch_remote::server
