#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/clone.h>

#include "client/backend/pinned.h"
#include "client/copy.h"
#include "client/kernels/tensors.h"

namespace torch_remote::client::kernels {

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source))
    return self;
  // The error of expand_as, as local copy_ has it.
  if (!self.sizes().equals(source.sizes()))
    (void)at::expand_inplace(self, source, "copy");
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

// Copy-on-write would have to know of every write on the server.
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

// One stream, in order: a storage is never given back before the calls that use it.
void record_stream(at::Tensor& /*self*/, at::Stream /*stream*/) {}

}  // namespace torch_remote::client::kernels
