#include "server/executor/entry.h"

#include <utility>

#include <ATen/ops/clone.h>
#include <c10/core/TensorImpl.h>

#include "base/error.h"

namespace torch_remote::server {
namespace {

c10::DispatchKeySet key_set_of(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

}  // namespace

bool covers(const Entry& entry, const marshal::TensorRecipe& view, uint64_t offset) {
  return offset == 0 && view.is_dense && view.extent == entry.nbytes;
}

bool is_view_of(const Entry& entry, const at::Tensor& view, uint64_t offset) {
  return view.storage().unsafeGetStorageImpl() == entry.storage.unsafeGetStorageImpl() &&
         view.storage_offset() == static_cast<int64_t>(offset);
}

at::Tensor make_view(const c10::Storage& storage, const marshal::TensorRecipe& view,
                     uint64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(storage), key_set_of(storage.device()),
      c10::scalarTypeToTypeMeta(view.dtype));
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(view.sizes, view.strides, static_cast<int64_t>(offset));
  if (view.conj)
    impl->_set_conj(true);
  if (view.neg)
    impl->_set_neg(true);
  if (view.wrapped)
    impl->set_wrapped_number(true);
  return tensor;
}

bool is_made_as(const at::Tensor& tensor, const marshal::TensorRecipe& view, uint64_t offset) {
  if (!tensor.defined() || view.wrapped)
    return false;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.storage_offset() == static_cast<int64_t>(offset) && !impl.is_wrapped_number() &&
         impl.dtype() == c10::scalarTypeToTypeMeta(view.dtype) && impl.sizes() == view.sizes &&
         impl.strides() == view.strides && impl.is_conj() == view.conj && impl.is_neg() == view.neg;
}

at::Tensor bytes_of(const c10::Storage& storage, uint64_t offset, uint64_t length) {
  marshal::TensorRecipe view;
  view.dtype = at::kByte;
  view.sizes = {static_cast<int64_t>(length)};
  view.strides = {1};
  return make_view(storage, view, offset);
}

Pin::Pin(const c10::Storage& storage)
    : storage_(storage.getWeakStorageImpl()),
      capacity_(storage.nbytes()),
      was_resizable_(storage.unsafeGetStorageImpl()->resizable()) {
  storage.unsafeGetStorageImpl()->set_resizable(false);
}

Pin::~Pin() {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage)
    return;
  storage->set_nbytes(capacity_);  // RESIZE may have made it smaller
  storage->set_resizable(was_resizable_);
}

std::shared_ptr<const Pin> pin(Entry& entry) {
  check_internal(entry.storage && entry.upload == nullptr && !entry.is_being_sent(),
                 "a storage is pinned when it is ready to be written");
  if (std::shared_ptr<const Pin> present = entry.pin.lock())
    return present;
  auto made = std::make_shared<const Pin>(entry.storage);
  entry.pin = made;
  return made;
}

at::Tensor for_reply(const Entry& entry, at::Tensor view) {
  return entry.is_pinned() ? view.clone() : std::move(view);
}

}  // namespace torch_remote::server
