#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>

#include "client/kernels/tensors.h"

namespace torch_remote::client::kernels {
namespace {

// PyTorch's kernels take the numbers from a tensor of the CPU, whatever the device of the lists.
std::vector<at::Scalar> numbers(const at::Tensor& scalars, at::TensorList self) {
  return at::native::convert_tensor_to_scalar_list(scalars.cpu(),
                                                   static_cast<int64_t>(self.size()));
}

}  // namespace

std::vector<at::Tensor> foreach_addcdiv(at::TensorList self, at::TensorList tensor1,
                                        at::TensorList tensor2, const at::Tensor& scalars) {
  return at::_foreach_addcdiv(self, tensor1, tensor2, numbers(scalars, self));
}

void foreach_addcdiv_(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const at::Tensor& scalars) {
  at::_foreach_addcdiv_(self, tensor1, tensor2, numbers(scalars, self));
}

std::vector<at::Tensor> foreach_addcmul(at::TensorList self, at::TensorList tensor1,
                                        at::TensorList tensor2, const at::Tensor& scalars) {
  return at::_foreach_addcmul(self, tensor1, tensor2, numbers(scalars, self));
}

void foreach_addcmul_(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const at::Tensor& scalars) {
  at::_foreach_addcmul_(self, tensor1, tensor2, numbers(scalars, self));
}

}  // namespace torch_remote::client::kernels
