#include "client/shapes/shapes.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include "marshal/dtype.h"

namespace torch_remote::client::shapes {

wire::Output fresh(at::ScalarType dtype, Sizes sizes, Sizes strides) {
  wire::Output output;
  output.kind = wire::OutputKind::kFresh;
  output.spec.dtype = *marshal::to_wire(dtype);
  output.spec.sizes = std::move(sizes);
  output.spec.strides = std::move(strides);
  return output;
}

wire::Output contiguous(at::ScalarType dtype, Sizes sizes) {
  Sizes strides = wire::contiguous_strides(sizes);
  return fresh(dtype, std::move(sizes), std::move(strides));
}

wire::Output like(const at::Tensor& tensor) {
  const bool is_dense = tensor.is_non_overlapping_and_dense();
  return fresh(tensor.scalar_type(), tensor.sizes().vec(),
               is_dense ? tensor.strides().vec()
                        : at::infer_dense_strides(tensor.sizes(), tensor.strides()));
}

wire::Output elementwise(const at::Tensor& tensor) {
  if (tensor.is_contiguous())
    return contiguous(tensor.scalar_type(), tensor.sizes().vec());
  if (tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    return fresh(tensor.scalar_type(), tensor.sizes().vec(),
                 c10::get_channels_last_strides_2d(tensor.sizes()));
  }
  return like(tensor);
}

wire::Output iterated(at::ScalarType dtype, c10::ArrayRef<at::Tensor> operands) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).declare_static_dtype_and_device(dtype, at::kMeta);
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& operand : operands) {
    config.add_owned_const_input(
        at::detail::empty_strided_meta(operand.sizes(), operand.strides(), operand.scalar_type()));
  }
  const at::TensorIterator iterator = config.build();
  return fresh(dtype, iterator.output(0).sizes().vec(), iterator.output(0).strides().vec());
}

wire::Output scalar(at::ScalarType dtype) {
  return contiguous(dtype, {});
}

bool is_strided(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_conj() &&
         !tensor.is_neg();
}

bool is_plain(const at::Tensor& tensor) {
  return is_strided(tensor) && tensor.is_non_overlapping_and_dense();
}

bool is_standard(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.is_contiguous() &&
         tensor.strides().equals(wire::contiguous_strides(tensor.sizes().vec()));
}

bool becomes_standard(const at::Tensor& tensor) {
  return is_strided(tensor) && (!tensor.is_contiguous() || is_standard(tensor));
}

bool is_channels_last(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.dim() == 4 &&
         tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast &&
         tensor.strides().equals(c10::get_channels_last_strides_2d(tensor.sizes()));
}

bool is_settled(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.strides().equals(elementwise(tensor).spec.strides);
}

bool is_full_float(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return is_strided(a) && is_strided(b) && a.scalar_type() == b.scalar_type() &&
         at::isFloatingType(a.scalar_type());
}

bool fits(const at::Tensor& tensor, at::ScalarType dtype, c10::IntArrayRef sizes) {
  if (!tensor.defined())
    return true;
  return tensor.scalar_type() == dtype && tensor.sizes().equals(sizes) && is_standard(tensor);
}

bool are_broadcastable(c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const int64_t x = a[a.size() - i];
    const int64_t y = b[b.size() - i];
    if (x != y && x != 1 && y != 1)
      return false;
  }
  return true;
}

bool expands_to(c10::IntArrayRef smaller, c10::IntArrayRef larger) {
  return at::is_expandable_to(smaller, larger);
}

int64_t wrap_dim(int64_t dim, int64_t count) {
  const int64_t wrapped = dim < 0 ? dim + count : dim;
  return wrapped >= 0 && wrapped < count ? wrapped : -1;
}

ShapeFunction find_shape_function(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, ShapeFunction>;
    for (const auto& part :
         {elementwise_table(), activation_table(), normalization_table(), convolution_table(),
          indexing_table(), attention_table(), reduction_table(), loss_table(),
          view_gradient_table(), factory_table(), linalg_table()})
      for (const auto& row : part)
        TORCH_INTERNAL_ASSERT(all->insert(row).second, row.first, " has two shape functions");
    return all;
  }();
  const auto found = table->find(name);
  return found == table->end() ? find_foreach(name) : found->second;
}

}  // namespace torch_remote::client::shapes
