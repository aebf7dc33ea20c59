#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/log_softmax_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/softmax_compositeimplicitautograd_dispatch.h>

#include "client/kernels/composite.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {
namespace {

// CUDA's kernels can read half precision and write float.
bool converts_itself(const at::Tensor& input, std::optional<at::ScalarType> dtype) {
  return input.scalar_type() == at::kHalf && dtype == at::kFloat && is_on_cuda_server(input);
}

}  // namespace

at::Tensor softmax(const at::Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype) {
  if (converts_itself(input, dtype))
    return at::_softmax(input, dim, true);
  return at::compositeimplicitautograd::softmax(input, dim, dtype);
}

at::Tensor log_softmax(const at::Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype) {
  if (converts_itself(input, dtype))
    return at::_log_softmax(input, dim, true);
  return at::compositeimplicitautograd::log_softmax(input, dim, dtype);
}

}  // namespace torch_remote::client::kernels
