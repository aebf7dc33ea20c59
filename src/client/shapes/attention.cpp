#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

// Allocated as [batch, position, head, feature] and then transposed.
wire::Output transposed(at::ScalarType dtype, c10::IntArrayRef sizes) {
  Sizes made = sizes.vec();
  std::swap(made[1], made[2]);
  Sizes strides = wire::contiguous_strides(made);
  std::swap(strides[1], strides[2]);
  return fresh(dtype, sizes.vec(), std::move(strides));
}

bool is_head(const at::Tensor& tensor, const at::Tensor& query) {
  return tensor.dim() == 4 && tensor.scalar_type() == query.scalar_type() &&
         tensor.size(3) == query.size(3) && tensor.size(0) == query.size(0) && tensor.numel() > 0;
}

// (query, key, value, …). PyTorch's shape function gives other strides to a query of length 1.
bool flash_for_cpu(Arguments arguments, Outputs& outputs) {
  const at::Tensor& query = tensor(arguments, 0);
  const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (!(is_half || is_full_float(query)) || query.numel() == 0)
    return false;
  for (const size_t i : {0, 1, 2})
    if (!is_head(tensor(arguments, i), query))
      return false;
  outputs.push_back(like(query));
  outputs.push_back(
      transposed(is_half ? at::kFloat : query.scalar_type(), query.sizes().slice(0, 3)));
  return true;
}

// (grad_out, query, key, value, …)
bool flash_for_cpu_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& query = tensor(arguments, 1);
  for (const size_t i : {1, 2, 3}) {
    if (!is_full_float(query) || !is_head(tensor(arguments, i), query))
      return false;
    outputs.push_back(transposed(query.scalar_type(), tensor(arguments, i).sizes()));
  }
  return true;
}

// (source, …). PyTorch's shape function gives the result the source's strides.
bool encoder_layer(Arguments arguments, Outputs& outputs) {
  const at::Tensor& source = tensor(arguments, 0);
  if (!is_strided(source) || source.dim() != 3 || source.numel() == 0)
    return false;
  outputs.push_back(contiguous(source.scalar_type(), source.sizes().vec()));
  return true;
}

}  // namespace

Table attention_table() {
  return {
      {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_for_cpu},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_for_cpu_backward},
      {"aten::_transformer_encoder_layer_fwd", encoder_layer},
  };
}

}  // namespace torch_remote::client::shapes
