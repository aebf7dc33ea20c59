#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/split.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "client/backend/allocator.h"
#include "client/kernels/tensors.h"
#include "client/memory/storage.h"

namespace torch_remote::client::kernels {

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  const auto plain =
      offset.has_value() ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), plain);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor unsafe_view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) {
  return at::native::view_as_real(self);
}

at::Tensor view_as_complex(const at::Tensor& self) {
  return at::native::view_as_complex(self);
}

std::vector<at::Tensor> unsafe_split(const at::Tensor& self, c10::SymInt split_size, int64_t dim) {
  return at::split_symint(self, split_size, dim);
}

std::vector<at::Tensor> unsafe_split_with_sizes(const at::Tensor& self, c10::SymIntArrayRef sizes,
                                                int64_t dim) {
  return at::split_with_sizes_symint(self, sizes, dim);
}

namespace {

void grow_to_fit(at::TensorImpl& impl) {
  const uint64_t needed = at::detail::computeStorageNbytes(impl.sizes(), impl.strides(),
                                                           impl.itemsize(), impl.storage_offset());
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  if (impl.numel() > 0 && needed > storage.nbytes())
    resize_storage(storage, needed);
}

}  // namespace

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  at::TensorImpl& impl = *self.unsafeGetTensorImpl();
  const auto before = static_cast<int64_t>(impl.unsafe_storage().nbytes());
  if (!impl.sizes().equals(sizes))
    impl.set_sizes_contiguous(sizes);
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl.empty_tensor_restride(*format);
  }
  grow_to_fit(impl);
  if (C10_UNLIKELY(fills_new_memory()))
    at::native::fill_resize_deterministic_(self, before);
  return self;
}

at::Tensor& set_source_storage_offset(at::Tensor& self, at::Storage source, c10::SymInt offset,
                                      c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(),
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  at::native::checkSetStorage(self, std::move(source), offset.expect_int(),
                              C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  at::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_offset(offset.expect_int());
  const auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (strides.data() == nullptr) {
    if (!impl.sizes().equals(sizes))  // if the size does not change, the strides stay, as locally
      impl.set_sizes_contiguous(sizes);
  } else {
    impl.set_sizes_and_strides(sizes, strides);
  }
  grow_to_fit(impl);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  const c10::SymInt size(elements);
  return set_source_storage_offset(self, std::move(source), 0, size, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl())
    return self;
  return set_source_storage_offset(self, source.storage(), source.sym_storage_offset(),
                                   source.sym_sizes(), source.sym_strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, RemoteAllocator::instance().allocate(0),
                       &RemoteAllocator::instance(), true);
  const c10::SymInt zero(0);
  return set_source_storage_offset(self, std::move(storage), 0, zero, {});
}

}  // namespace torch_remote::client::kernels
