#include "client/shapes/shapes.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/MemoryFormat.h>

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

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

bool is_standard(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.is_contiguous() &&
         tensor.strides().equals(wire::contiguous_strides(tensor.sizes().vec()));
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

bool fits(const at::Tensor& tensor, at::ScalarType dtype, c10::IntArrayRef sizes) {
  if (!tensor.defined())
    return true;
  return tensor.scalar_type() == dtype && tensor.sizes().equals(sizes) && is_standard(tensor);
}

int64_t wrap_dim(int64_t dim, int64_t count) {
  const int64_t wrapped = dim < 0 ? dim + count : dim;
  return wrapped >= 0 && wrapped < count ? wrapped : -1;
}

}  // namespace torch_remote::client::shapes
