#include "client/layout.h"

#include <algorithm>
#include <array>

#include "client/dispatch.h"

namespace torch_remote::client {
namespace {

constexpr std::array<std::string_view, 6> kOtherLayouts = {
    "sparse", "nested", "_jagged", "quantized", "_coalesce", "mkldnn_reorder",
};

// Jagged nested tensors are dense ones in a Python class: their operators are not among these.
constexpr std::array<std::string_view, 15> kMakers = {
    "aten::_to_sparse",          "aten::to_mkldnn",          "aten::quantize_per_",
    "aten::_nested_tensor_from", "aten::_nested_from_",      "aten::_nested_view_from_buffer",
    "aten::_sparse_coo",         "aten::_sparse_compressed", "aten::_sparse_csr_tensor",
    "aten::_sparse_csc_tensor",  "aten::_sparse_bsr_tensor", "aten::_sparse_bsc_tensor",
    "aten::_make_per_",          "aten::mkldnn_reorder",     "aten::to_padded",
};

}  // namespace

bool mentions_another_layout(std::string_view name) {
  return std::any_of(kOtherLayouts.begin(), kOtherLayouts.end(),
                     [name](std::string_view part) { return name.find(part) != name.npos; });
}

bool makes_another_layout(std::string_view name) {
  return std::any_of(kMakers.begin(), kMakers.end(),
                     [name](std::string_view start) { return name.starts_with(start); });
}

void refuse_layout(const c10::OperatorHandle& operation, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, operation.operator_name().name,
      ": a remote device holds dense tensors only, not sparse, quantized, "
      "mkldnn or strided nested ones; "
      "keep such a tensor on the CPU (.cpu()), or make it dense "
      "(.to_dense(), .dequantize(), sparse=False). "
      "Nested tensors with layout=torch.jagged work, and nn.TransformerEncoder makes no "
      "others with enable_nested_tensor=False");
}

void refuse_remote_device(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
  const size_t count = operation.schema().arguments().size();
  const int index = *operation.schema().argumentIndexWithName("device");
  const c10::IValue& device = torch::jit::peek(*stack, index, count);
  if (device.isDevice() && device.toDevice().is_privateuseone())
    refuse_layout(operation, stack);
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  operation.redispatchBoxed(keys & below, stack);
}

void refuse_sparse_gradient(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const size_t count = operation.schema().arguments().size();
  const int index = *operation.schema().argumentIndexWithName("sparse");
  if (torch::jit::peek(*stack, index, count).toBool())
    refuse_layout(operation, stack);
  dispatch(operation, stack);
}

}  // namespace torch_remote::client
