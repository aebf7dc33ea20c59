#include "client/shapes/meta_arguments.h"

#include <c10/core/Allocator.h>

namespace torch_remote::client {
namespace {

// A tensor with the same metadata on the meta device, over `storage`.
at::Tensor to_meta(const at::Tensor& tensor, const c10::Storage& storage) {
  at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
  meta.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  if (tensor.is_conj())
    meta._set_conj(true);
  if (tensor.is_neg())
    meta._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

}  // namespace

MetaArguments::MetaArguments(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments)
    stack_.push_back(convert(argument));
}

const at::TensorImpl* MetaArguments::real(const at::Tensor& meta) {
  const size_t known = meta_index_.find(meta_impls_, meta.unsafeGetTensorImpl());
  return known == marshal::PointerIndex::kNone ? nullptr : reals_[known];
}

at::Tensor MetaArguments::convert_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_privateuseone())
    return tensor;
  const at::TensorImpl* const real = tensor.unsafeGetTensorImpl();
  const size_t known = real_index_.find(reals_, real);
  if (known != marshal::PointerIndex::kNone)
    return metas_[known];
  at::Tensor meta = to_meta(tensor, storage_for(tensor));
  reals_.push_back(real);
  meta_impls_.push_back(meta.unsafeGetTensorImpl());
  metas_.push_back(meta);
  return meta;
}

c10::Storage MetaArguments::storage_for(const at::Tensor& tensor) {
  const c10::StorageImpl* const real = tensor.storage().unsafeGetStorageImpl();
  const size_t known = storage_index_.find(real_storages_, real);
  if (known != marshal::PointerIndex::kNone)
    return storages_[known];
  real_storages_.push_back(real);
  storages_.emplace_back(c10::Storage::use_byte_size_t(), real->nbytes(),
                         c10::GetAllocator(c10::kMeta), /*resizable=*/true);
  return storages_.back();
}

c10::IValue MetaArguments::convert(const c10::IValue& value) {
  if (value.isTensor())
    return convert_tensor(value.toTensor());
  if (value.isDevice() && value.toDevice().is_privateuseone())
    return c10::Device(c10::kMeta);
  if (value.isGenerator())
    return c10::IValue();
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : value.toListRef())
      list.push_back(convert_tensor(item.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef())
      list.push_back(item.isNone() ? std::optional<at::Tensor>() : convert_tensor(item.toTensor()));
    return list;
  }
  return value;
}

}  // namespace torch_remote::client
