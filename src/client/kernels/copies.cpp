#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/clone.h>

#include "client/backend/streams.h"
#include "client/call/copy.h"
#include "client/capture/record.h"
#include "client/kernels/tensors.h"
#include "client/memory/downloads.h"

namespace torch_remote::client::kernels {
namespace {

// Refuses what PyTorch's own copy_ refuses, with the same texts in the same order.
void check_copy(const at::Tensor& self, const at::Tensor& source) {
  if (self.numel() != 0)
    at::assert_no_internal_overlap(self);
  // On two devices they share no memory, and the source may have no storage yet.
  if (source.device() == self.device())
    at::assert_no_partial_overlap(self, source);
  if (self.sizes().equals(source.sizes()))
    return;
  const auto sizes = at::infer_size(self.sizes(), source.sizes());
  TORCH_CHECK(self.sizes().equals(sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(sizes));
}

// Two tensors over the same elements. PyTorch's copy_ returns here too, before it checks overlaps.
bool is_same_view(const at::Tensor& self, const at::Tensor& source) {
  return self.device() == source.device() && self.is_alias_of(source) &&
         self.storage_offset() == source.storage_offset() && self.sizes().equals(source.sizes()) &&
         self.strides().equals(source.strides()) && self.dtype() == source.dtype() &&
         self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
}

}  // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source) || is_same_view(self, source))
    return self;
  check_copy(self, source);
  copy_tensor(self, source, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  copy_tensor(destination, self, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  at::native::resize_output(destination, self.sizes());
  copy_tensor(destination, self, false);
  return destination;
}

// PyTorch's own, but for a large download, which is received into memory of an earlier one.
at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> format) {
  const bool is_plain = dtype.value_or(self.scalar_type()) == self.scalar_type() &&
                        layout.value_or(at::kStrided) == at::kStrided &&
                        format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve &&
                        !pin_memory.value_or(false) && !non_blocking;
  if (!device.has_value() || !device->is_cpu() || !is_plain ||
      own_record(*self.unsafeGetTensorImpl()) == nullptr || self.nbytes() < kSmallestKept ||
      !self.is_non_overlapping_and_dense())
    return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
  at::Tensor result = empty_for_download(self.sizes(), self.strides(), self.scalar_type());
  result.copy_(self);
  return result;
}

// A real clone: copy-on-write would have to notice every write on the server.
at::Tensor lazy_clone(const at::Tensor& self) {
  return at::clone(self);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(),
              " elements cannot be converted to Scalar");
  return at::_local_scalar_dense(download(self));
}

bool has_compatible_shallow_copy_type(const at::Tensor& /*self*/, const at::Tensor& /*from*/) {
  return true;
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes().equals(other.sizes()) &&
         self.strides().equals(other.strides());
}

void record_stream(at::Tensor& self, at::Stream stream) {
  client::record_stream(self.storage().data_ptr(), stream);
}

}  // namespace torch_remote::client::kernels
