#include "client/layout.h"

#include <algorithm>
#include <array>

namespace torch_remote::client {
namespace {

constexpr std::array<std::string_view, 6> kOtherLayouts = {
    "sparse", "nested", "_jagged", "quantized", "_coalesce", "mkldnn_reorder",
};

constexpr std::array<std::string_view, 9> kMakers = {
    "aten::_to_sparse", "aten::to_mkldnn",      "aten::quantize_per_",
    "aten::_nested_",   "aten::_sparse_coo",    "aten::_sparse_compressed",
    "aten::_make_per_", "aten::mkldnn_reorder", "aten::to_padded",
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
      ": a remote device holds dense tensors only, not sparse, nested, quantized or mkldnn "
      "ones; move the tensor with .cpu() first");
}

}  // namespace torch_remote::client
