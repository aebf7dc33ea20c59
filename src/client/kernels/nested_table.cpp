// What happens to nested tensors, by operator: Note [Nested tensors].
#include <algorithm>

#include <torch/library.h>

#include "client/call/layout.h"
#include "client/kernels/nested.h"
#include "client/kernels/parts.h"
#include "client/kernels/table.h"
#include "marshal/operator_table.h"

namespace torch_remote::client::kernels {
namespace {

constexpr KernelRow kOwnKernels[] = {
    {"matmul", unboxed<&nested_matmul>},
    {"sum.dim_IntList", unboxed<&nested_sum>},
    {"_nested_sum_backward", unboxed<&nested_sum_backward>},
    {"native_layer_norm", unboxed<&nested_layer_norm>},
    {"native_layer_norm_backward", unboxed<&nested_layer_norm_backward>},
    {"_transform_bias_rescale_qkv", unboxed<&nested_transform_qkv>},
};

void run_on_parts(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  run_kernel_of(c10::DispatchKey::NestedTensorCPU, operation, stack);
}

}  // namespace

void register_nested(torch::Library& library, const c10::OperatorHandle& operation,
                     const char* name) {
  const std::string key = marshal::row_key(operation.operator_name());
  const auto* const own = std::ranges::find_if(
      kOwnKernels, [&](const KernelRow& row) { return marshal::matches(row.name, key); });
  if (own != std::end(kOwnKernels))
    return own->kernel(library, name);
  if (marshal::rules_of(operation.operator_name()).has(marshal::kHandlesNestedParts))
    boxed<&run_on_parts>(library, name);
  else
    boxed<&refuse_nested>(library, name);
}

}  // namespace torch_remote::client::kernels
