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

// clang-format off
constexpr KernelRow kOwnKernels[] = {
    {"matmul", unboxed<&nested_matmul>},
    {"sum.dim_IntList", unboxed<&nested_sum>},
    {"_nested_sum_backward", unboxed<&nested_sum_backward>},
    {"native_layer_norm", unboxed<&nested_layer_norm>},
    {"native_layer_norm_backward", unboxed<&nested_layer_norm_backward>},
    {"_transform_bias_rescale_qkv", unboxed<&nested_transform_qkv>},
};

// PyTorch's kernel for the CPU does not read memory. Read a new one before you add it: on the
// address of a remote tensor it ends the process.
constexpr const char* kOnParts[] = {
    "_fused_sdp_choice", "_native_multi_head_attention", "_nested_from_padded_and_nested_example",
    "_nested_select_backward", "_nested_tensor_size", "_nested_tensor_softmax_with_shape",
    "_nested_tensor_storage_offsets", "_nested_tensor_strides", "_pin_memory", "_safe_softmax",
    "_softmax", "_softmax_backward_data", "_to_copy", "_transformer_encoder_layer_fwd", "abs",
    "abs_", "add.Tensor", "add_.Tensor", "alias", "all.dim", "bmm", "cat", "chunk", "clone",
    "copy_", "cos", "detach", "div.Scalar", "div.Tensor", "embedding", "empty_like", "eq.Scalar",
    "eq.Tensor", "fill_.Scalar", "fill_.Tensor", "ge.Scalar", "gelu", "gelu_", "gelu_backward",
    "gt.Scalar", "is_pinned", "is_same_size", "isinf", "isnan", "isneginf", "isposinf", "linear",
    "linear_backward", "logical_not", "logical_not_", "masked_fill.Scalar", "matmul.out",
    "matmul_backward", "mul.Scalar", "mul.Tensor", "mul_.Scalar", "mul_.Tensor", "narrow",
    "native_dropout", "native_dropout_backward", "neg", "neg_", "normal_", "ones_like", "relu",
    "relu_", "select.int", "sgn", "sgn_", "silu", "silu_", "silu_backward", "sin",
    "split_with_sizes", "sqrt", "squeeze", "squeeze.dim", "squeeze.dims", "sub.Tensor", "tanh",
    "tanh_", "threshold_backward", "to_padded_tensor", "transpose.int", "unbind.int", "unsqueeze",
    "value_selecting_reduction_backward", "values", "view", "where.self", "where.self_out", "zero_",
};

// clang-format on

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
  if (std::ranges::any_of(kOnParts, [&](const char* row) { return marshal::matches(row, key); }))
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_parts>());
  else
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

}  // namespace torch_remote::client::kernels
