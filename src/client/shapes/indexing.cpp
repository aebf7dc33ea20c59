#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

bool is_index(const at::Tensor& index) {
  return index.scalar_type() == at::kLong || index.scalar_type() == at::kInt;
}

bool embedding(Arguments arguments, Outputs& outputs) {
  const at::Tensor& weight = tensor(arguments, 0);
  const at::Tensor& indices = tensor(arguments, 1);
  if (weight.dim() != 2 || !is_standard(weight) || !is_standard(indices) || !is_index(indices))
    return false;
  Sizes sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  outputs.push_back(contiguous(weight.scalar_type(), std::move(sizes)));
  return true;
}

bool embedding_dense_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& grad = tensor(arguments, 0);
  if (grad.dim() == 0)
    return false;
  outputs.push_back(contiguous(grad.scalar_type(), {arguments[2].toInt(), grad.size(-1)}));
  return true;
}

bool index_select(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& index = tensor(arguments, 2);
  if (input.dim() == 0 || index.dim() > 1 || !is_index(index))
    return false;
  const int64_t dim = wrap_dim(arguments[1].toInt(), input.dim());
  if (dim < 0)
    return false;
  Sizes sizes = input.sizes().vec();
  sizes[static_cast<size_t>(dim)] = index.numel();
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

bool repeat(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  Sizes sizes = integers(arguments[1]);
  if (static_cast<int64_t>(sizes.size()) < input.dim())
    return false;
  const size_t before = sizes.size() - static_cast<size_t>(input.dim());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0)
      return false;
    if (i >= before)
      sizes[i] *= input.size(static_cast<int64_t>(i - before));
  }
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// (repeats, output_size): the caller may say how long it will be.
bool repeat_interleave(Arguments arguments, Outputs& outputs) {
  if (arguments[1].isNone() || tensor(arguments, 0).dim() != 1)
    return false;
  outputs.push_back(contiguous(tensor(arguments, 0).scalar_type(), {arguments[1].toInt()}));
  return true;
}

bool stack(Arguments arguments, Outputs& outputs) {
  const auto items = arguments[0].toListRef();
  if (items.empty())
    return false;
  const at::Tensor& first = items[0].toTensor();
  const int64_t dim = wrap_dim(arguments[1].toInt(), first.dim() + 1);
  if (dim < 0)
    return false;
  for (const c10::IValue& item : items) {
    const at::Tensor& other = item.toTensor();
    if (!other.defined() || !other.device().is_privateuseone() ||
        !fits(other, first.scalar_type(), first.sizes())) {
      return false;
    }
  }
  Sizes sizes = first.sizes().vec();
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(items.size()));
  outputs.push_back(contiguous(first.scalar_type(), std::move(sizes)));
  return true;
}

bool constant_pad(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const Sizes pad = integers(arguments[1]);
  Sizes sizes = input.sizes().vec();
  if (!is_standard(input) || pad.size() % 2 != 0 || pad.size() / 2 > sizes.size())
    return false;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    if (pad[2 * i] < 0 || pad[2 * i + 1] < 0)
      return false;  // then it may be a clone of a part
    sizes[sizes.size() - 1 - i] += pad[2 * i] + pad[2 * i + 1];
  }
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

bool roll(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const Sizes dims = integers(arguments[2]);
  if (!is_standard(input) || dims.empty() || integers(arguments[1]).size() != dims.size())
    return false;
  for (const int64_t dim : dims) {
    if (wrap_dim(dim, input.dim()) < 0)
      return false;
  }
  outputs.push_back(like(input));
  return true;
}

// Into a dimension of size 0: Meta selects its first element to look at, and there is none.
bool index_nothing(Arguments arguments, Outputs& outputs) {
  const at::Tensor& self = tensor(arguments, 0);
  const int64_t dim = wrap_dim(arguments[1].toInt(), self.dim());
  if (dim < 0 || self.size(dim) != 0 || tensor(arguments, 2).numel() != 0)
    return false;
  if (!tensor(arguments, 3).sizes().equals(self.sizes()) ||
      tensor(arguments, 3).scalar_type() != self.scalar_type())
    return false;
  wire::Output output;
  output.kind = wire::OutputKind::kTensor;  // tensor 0: self
  outputs.push_back(std::move(output));
  return true;
}

}  // namespace

Table indexing_table() {
  return {
      {"aten::embedding", embedding},
      {"aten::embedding_dense_backward", embedding_dense_backward},
      {"aten::index_select", index_select},
      {"aten::index_add_", index_nothing},
      {"aten::index_reduce_", index_nothing},
      {"aten::repeat", repeat},
      {"aten::repeat_interleave.Tensor", repeat_interleave},
      {"aten::stack", stack},
      {"aten::constant_pad_nd", constant_pad},
      {"aten::roll", roll},
  };
}

}  // namespace torch_remote::client::shapes
