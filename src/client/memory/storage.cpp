#include "client/memory/storage.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>

#include "client/machines/machines.h"
#include "client/memory/memory_figures.h"
#include "client/process/current_device.h"
#include "client/process/memory_history.h"
#include "client/process/process.h"
#include "client/process/recording.h"
#include "client/process/records.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

// `live`: the bytes of the device's tensors when this is done. Does nothing without a profile.
void report(const StorageRecord& record, uint64_t address, int64_t bytes, int64_t live) {
  const auto total = static_cast<size_t>(std::max<int64_t>(live, 0));
  const c10::DeviceIndex index = session_of(record)->order().index_of(record.server_device);
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(address), bytes, total, total,
                                   c10::Device(c10::kPrivateUse1, index));
}

int64_t live_bytes(const StorageRecord& record) {
  return session_of(record)->order().memory(record.server_device).live();
}

}  // namespace

void note_made(const StorageRecord& record) {
  MemoryHistory::instance().note_made(record);
  const auto bytes = static_cast<int64_t>(record.nbytes.load(std::memory_order_relaxed));
  if (bytes != 0)
    report(record, record.address.load(std::memory_order_relaxed), bytes, live_bytes(record));
}

void note_freed(const StorageRecord& record, uint64_t address, uint64_t bytes) {
  MemoryHistory::instance().note_freed(record, address, bytes);
  const auto freed = static_cast<int64_t>(bytes);
  if (freed != 0)
    report(record, address, -freed, live_bytes(record) - freed);
}

namespace {

void zero_bytes(const c10::Storage& storage) {
  static const auto operation = c10::Dispatcher::singleton().findSchemaOrThrow("aten::zero_", "");
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  torch::jit::Stack stack{std::move(bytes)};
  operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
}

}  // namespace

void delete_record(void* context) {
  auto* record = static_cast<StorageRecord*>(context);
  if (in_forked_child() || is_exiting())
    return;
  if (MemoryHistory::is_needed()) [[unlikely]]
    note_freed(*record, record->address.load(), record->nbytes.load());
  record->address.store(0, std::memory_order_relaxed);
  RecordPool::instance().note_dead();
  Session& session = *session_of(*record);
  session.order().memory(record->server_device).add(-static_cast<int64_t>(record->nbytes.load()));
  session.order().queue_free(record, session.link().is_lost());
}

StorageRecord* make_record(Session& session, uint8_t server_device, c10::DeviceIndex index,
                           uint64_t nbytes, uint64_t name, uint64_t made_by) {
  MessageOrder& order = session.order();
  const uint8_t current = are_streams_used() ? current_stream(index) : uint8_t{0};
  StorageRecord* const record =
      RecordPool::instance().make(name != 0 ? name : order.new_names().storages(), &session,
                                  server_device, nbytes, current, made_by);
  order.memory(server_device).add(static_cast<int64_t>(nbytes));
  if (MemoryHistory::is_needed()) [[unlikely]]
    note_made(*record);
  return record;
}

c10::Storage storage_on(StorageRecord* record, uint64_t nbytes, c10::Device device) {
  return {c10::Storage::use_byte_size_t(), nbytes,
          c10::DataPtr(reinterpret_cast<void*>(record->address.load(std::memory_order_relaxed)),
                       record, &delete_record, device),
          c10::GetAllocator(c10::kPrivateUse1), true};
}

at::Tensor tensor_on(c10::Storage storage, const wire::TensorSpec& spec) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(marshal::from_wire(spec.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides);
  if (spec.conj)
    tensor._set_conj(true);
  if (spec.neg)
    tensor._set_neg(true);
  return tensor;
}

c10::DataPtr allocate_remote(size_t nbytes, c10::DeviceIndex index) {
  const DevicePlace place = Machines::instance().place(index);
  StorageRecord* record = make_record(*place.session, place.device, index, nbytes);
  c10::DataPtr data(reinterpret_cast<void*>(record->address.load(std::memory_order_relaxed)),
                    record, &delete_record, c10::Device(c10::kPrivateUse1, index));
  if (must_reserve(*place.session, place.device, nbytes)) [[unlikely]] {
    check_memory_limit(*place.session, place.device, nbytes, /*is_counted=*/true);
    reserve(*record);
  }
  return data;
}

namespace {

// Gives a storage without memory a record, filled with zeros if it stands for zeros. If two threads
// do this for one storage, the first to finish wins.
StorageRecord* give_memory(c10::StorageImpl& storage, c10::DeviceIndex index, bool is_zeros) {
  static auto* mutex = new Mutex;
  c10::Storage made(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    allocate_remote(storage.nbytes(), index));
  if (is_zeros)
    zero_bytes(made);
  MutexLock lock(*mutex);
  if (storage.data() == nullptr)
    storage.set_data_ptr_noswap(made.set_data_ptr(c10::DataPtr()));
  return static_cast<StorageRecord*>(storage.data_ptr().get_context());
}

}  // namespace

void check_session(const StorageRecord& record) {
  session_of(record)->check_not_lost();
}

StorageRecord* find_record_slowly(const at::TensorImpl& tensor) {
  const bool is_remote =
      tensor.has_storage() && tensor.unsafe_storage().device().is_privateuseone();
  const bool is_zeros = tensor.key_set().has(c10::DispatchKey::ZeroTensor);
  const c10::Storage& storage = tensor.unsafe_storage();
  if (is_remote && storage.data() != nullptr) {
    StorageRecord* record = RecordPool::instance().find(reinterpret_cast<uint64_t>(storage.data()));
    TORCH_CHECK(record != nullptr,
                "this tensor's device is remote, but no remote storage has its address");
    return record;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_remote && (is_zeros || storage.nbytes() == 0),
      "this is a wrapper (of functorch, a fake tensor, a subclass) around a "
      "tensor on ",
      tensor.device(), ", and this operator needs the tensor itself");
  return give_memory(*storage.unsafeGetStorageImpl(), tensor.device().index(), is_zeros);
}

namespace {

void move_storage(c10::StorageImpl& storage, uint64_t nbytes, uint64_t address) {
  auto* record = static_cast<StorageRecord*>(storage.data_ptr().get_context());
  const uint64_t before = record->address.exchange(address, std::memory_order_relaxed);
  if (MemoryHistory::is_needed()) [[unlikely]] {
    note_freed(*record, before, storage.nbytes());
    note_made(*record);
  }
  c10::DataPtr old = storage.set_data_ptr(
      c10::DataPtr(reinterpret_cast<void*>(address), record, &delete_record, storage.device()));
  old.release_context();
  storage.set_nbytes(nbytes);
}

void set_bytes(StorageRecord& record, uint64_t nbytes) {
  const uint64_t before = record.nbytes.exchange(nbytes, std::memory_order_relaxed);
  session_of(record)
      ->order()
      .memory(record.server_device)
      .add(static_cast<int64_t>(nbytes) - static_cast<int64_t>(before));
}

// Raises if the server had no memory for it. Then it still has `before` bytes.
void check_resize(Session& session, StorageRecord& record, uint64_t call, uint64_t before) {
  session.query(wire::QueryKind::kBarrier, "resize");
  if (!session.faults().site_of(call).has_value())
    return;
  set_bytes(record, before);
  session.raise_own_failure();
}

// The same for a storage that the server has not known.
void reserve_resized(StorageRecord& record, uint64_t before) {
  Session& session = *session_of(record);
  try {
    reserve(record);
  } catch (...) {
    if (!session.link().is_lost()) {
      Submission at(session, IfLost::kWrite);
      at.number_message({0, record.server_device, kResizeSite});
      encode(at.writer(), wire::Resize{record.name, record.server_device, before});
    }
    set_bytes(record, before);
    throw;
  }
}

}  // namespace

bool owns_record(const c10::StorageImpl& storage) {
  return storage.data_ptr().get_deleter() == &delete_record;
}

// The name stays, so that all views of the storage see the new size; the address changes.
void resize_storage(c10::StorageImpl& storage, uint64_t nbytes) {
  auto* record = static_cast<StorageRecord*>(storage.data_ptr().get_context());
  if (!owns_record(storage)) {
    TORCH_CHECK(storage.nbytes() == 0, "a storage that wraps another's address cannot be resized");
    storage.set_data_ptr_noswap(allocate_remote(nbytes, storage.device().index()));
    storage.set_nbytes(nbytes);
    return;
  }
  if (record->announced.load(std::memory_order_relaxed))
    check_not_recording("resizing a tensor from outside of the graph");
  // Before the message: it raises if no server could hold that much.
  const uint64_t address = RecordPool::instance().new_address(nbytes);
  Session& session = *session_of(*record);
  const CallSite site{current_line(), record->server_device, kResizeSite};
  const uint64_t before = record->nbytes.load(std::memory_order_relaxed);
  uint64_t call = 0;
  if (nbytes > before)
    check_memory_limit(session, record->server_device, nbytes - before, /*is_counted=*/false);
  {
    Submission at(session);
    set_bytes(*record, nbytes);
    // Else the first mention of the storage sends its size.
    if (record->announced.load(std::memory_order_relaxed)) {
      call = at.number_message(site).call;
      encode(at.writer(), wire::Resize{record->name, record->server_device, nbytes});
    }
  }
  if (call != 0 && nbytes > before && may_not_fit(session, record->server_device))
    check_resize(session, *record, call, before);
  if (call == 0 && nbytes > before && must_reserve(session, record->server_device, nbytes))
    reserve_resized(*record, before);
  move_storage(storage, nbytes, address);
}

void take_size(c10::StorageImpl& storage, uint64_t nbytes) {
  auto* record = static_cast<StorageRecord*>(storage.data_ptr().get_context());
  set_bytes(*record, nbytes);
  move_storage(storage, nbytes, RecordPool::instance().new_address(nbytes));
}

}  // namespace torch_remote::client
