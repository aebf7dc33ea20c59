#include "client/memory/storage.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "client/machines/machines.h"
#include "client/memory/memory_figures.h"
#include "client/memory/memory_notes.h"
#include "client/process/current_stream.h"
#include "client/process/memory_history.h"
#include "client/process/process.h"
#include "client/session/session.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
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

}  // namespace torch_remote::client
