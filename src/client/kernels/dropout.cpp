#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/zeros.h>

#include "client/kernels/composite.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {

// A CPU makes a mask and multiplies; CUDA has one kernel for both, which rounds differently.
at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.sym_numel() == 0)
    return input;
  if (p == 1)
    return input.mul(at::zeros({}, input.options()));
  if (!is_on_cpu_server(input))
    return std::get<0>(at::native_dropout(input, p, train));
  at::Tensor noise = at::empty_like(input);
  noise.bernoulli_(1 - p);
  noise.div_(1 - p);
  return input.mul(noise);
}

}  // namespace torch_remote::client::kernels
