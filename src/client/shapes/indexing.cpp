#include <algorithm>

#include <ATen/ExpandUtils.h>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

bool is_index(const at::Tensor& index) {
  return index.scalar_type() == at::kLong || index.scalar_type() == at::kInt;
}

bool is_given(const c10::IValue& index) {
  return index.isTensor() && index.toTensor().defined();
}

bool embedding(Arguments arguments, Outputs& outputs) {
  const at::Tensor& weight = tensor(arguments, 0);
  const at::Tensor& indices = tensor(arguments, 1);
  if (weight.dim() != 2 || !is_strided(weight) || !is_index(indices))
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

// (repeats, output_size): known only if the caller gives output_size.
bool repeat_interleave(Arguments arguments, Outputs& outputs) {
  if (arguments[1].isNone() || tensor(arguments, 0).dim() != 1 || tensor(arguments, 0).numel() == 0)
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
  // stack is a cat, which keeps channels_last; a new last dimension counts for the operands too.
  const bool has_layouts = first.dim() + (dim == first.dim() ? 1 : 0) > 3;
  for (const c10::IValue& item : items) {
    const at::Tensor& other = item.toTensor();
    if (!other.defined() || !other.device().is_privateuseone() || !is_strided(other) ||
        other.scalar_type() != first.scalar_type() || !other.sizes().equals(first.sizes()) ||
        (has_layouts && !is_standard(other)))
      return false;
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
      return false;  // the result may be a clone of a part
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
  for (const int64_t dim : dims)
    if (wrap_dim(dim, input.dim()) < 0)
      return false;
  outputs.push_back(like(input));
  return true;
}

// An index into a dimension of size 0: Meta would select its first element, which does not exist.
bool index_nothing(Arguments arguments, Outputs& outputs) {
  const at::Tensor& self = tensor(arguments, 0);
  const int64_t dim = wrap_dim(arguments[1].toInt(), self.dim());
  if (dim < 0 || self.size(dim) != 0 || tensor(arguments, 2).numel() != 0)
    return false;
  if (!tensor(arguments, 3).sizes().equals(self.sizes()) ||
      tensor(arguments, 3).scalar_type() != self.scalar_type())
    return false;
  outputs.push_back(like(self));
  return true;
}

// Whether a clone keeps this tensor's strides, or what infer_dense_strides makes of them.
bool is_cloned_as_it_is(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg();
}

// (self, dim, index, value): a clone, then filled.
bool index_fill(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& index = tensor(arguments, 2);
  // PyTorch's text: its kernels check this, its Meta kernel does not.
  TORCH_CHECK(
      input.is_complex() || !arguments[3].isScalar() || !arguments[3].toScalar().isComplex(),
      "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  if (wrap_dim(arguments[1].toInt(), input.dim()) < 0 || index.dim() > 1)
    return false;
  if (index.scalar_type() != at::kLong || !is_cloned_as_it_is(input))
    return false;
  if (arguments[3].isTensor() && arguments[3].toTensor().dim() != 0)
    return false;
  outputs.push_back(like(input));
  return true;
}

// (self, index, source, accumulate): a clone, then written.
bool put(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& index = tensor(arguments, 1);
  const at::Tensor& source = tensor(arguments, 2);
  if (!is_cloned_as_it_is(input) || index.scalar_type() != at::kLong ||
      source.scalar_type() != input.scalar_type() || source.numel() != index.numel())
    return false;
  outputs.push_back(like(input));
  return true;
}

at::Tensor index_at(c10::ArrayRef<c10::IValue> indices, size_t dim) {
  return dim < indices.size() && indices[dim].isTensor() ? indices[dim].toTensor() : at::Tensor();
}

// The shape of input[indices], without masks. False: they do not fit.
bool indexed_shape(const at::Tensor& input, c10::ArrayRef<c10::IValue> indices, Sizes& sizes) {
  if (indices.size() > static_cast<size_t>(input.dim()))
    return false;
  std::vector<int64_t> indexed;  // the broadcast shape of the index tensors
  size_t first = 0;
  size_t runs = 0;
  for (size_t i = 0; i < static_cast<size_t>(input.dim()); ++i) {
    const at::Tensor index = index_at(indices, i);
    if (!index.defined()) {
      sizes.push_back(input.size(static_cast<int64_t>(i)));
      continue;
    }
    if (!is_index(index) || !are_broadcastable(index.sizes(), indexed))
      return false;
    indexed = at::infer_size(index.sizes(), indexed);
    if (runs == 0)
      first = sizes.size();
    if (i == 0 || !index_at(indices, i - 1).defined())
      ++runs;
  }
  const auto place = static_cast<ptrdiff_t>(runs == 1 ? first : 0);
  sizes.insert(sizes.begin() + place, indexed.begin(), indexed.end());
  return runs > 0;
}

bool has_mask(c10::ArrayRef<c10::IValue> indices) {
  for (size_t i = 0; i < indices.size(); ++i) {
    const at::Tensor index = index_at(indices, i);
    if (index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte))
      return true;
  }
  return false;
}

// One mask over the first dimensions. The number of elements that it picks depends on data.
bool is_mask_of(const at::Tensor& input, const c10::IValue& list) {
  const auto indices = list.toListRef();
  if (indices.size() != 1 || !is_given(indices[0]))
    return false;
  const at::Tensor& mask = indices[0].toTensor();
  return mask.scalar_type() == at::kBool && mask.dim() > 0 && mask.dim() <= input.dim() &&
         mask.sizes().equals(input.sizes().slice(0, static_cast<size_t>(mask.dim())));
}

// (self, indices, values, accumulate): a clone, then written.
bool index_put(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& values = tensor(arguments, 2);
  const auto indices = arguments[1].toListRef();
  if (!is_cloned_as_it_is(input) || values.scalar_type() != input.scalar_type())
    return false;
  Sizes sizes;
  const bool fits = has_mask(indices)
                        ? is_mask_of(input, arguments[1])
                        : indexed_shape(input, indices, sizes) && expands_to(values.sizes(), sizes);
  if (!fits)
    return false;
  outputs.push_back(like(input));
  return true;
}

// (self, dim, start, length)
bool narrow_copy(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const int64_t dim = wrap_dim(arguments[1].toInt(), input.dim());
  const int64_t length = arguments[3].toInt();
  if (dim < 0)
    return false;
  const int64_t given = arguments[2].toInt();
  const int64_t start = given < 0 ? given + input.size(dim) : given;
  if (start < 0 || length < 0 || length > input.size(dim) - start)
    return false;
  Sizes sizes = input.sizes().vec();
  sizes[static_cast<size_t>(dim)] = length;
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// (self, boundaries, out_int32, right)
bool bucketize(Arguments arguments, Outputs& outputs) {
  if (tensor(arguments, 1).dim() != 1)
    return false;
  outputs.push_back(
      contiguous(arguments[2].toBool() ? at::kInt : at::kLong, tensor(arguments, 0).sizes().vec()));
  return true;
}

// (self, offset, dim1, dim2): zeros, then a copy.
bool diag_embed(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const int64_t first = wrap_dim(arguments[2].toInt(), input.dim() + 1);
  const int64_t second = wrap_dim(arguments[3].toInt(), input.dim() + 1);
  if (input.dim() == 0 || first < 0 || second < 0 || first == second)
    return false;
  const int64_t length = input.size(-1) + std::abs(arguments[1].toInt());
  Sizes sizes = input.sizes().slice(0, static_cast<size_t>(input.dim() - 1)).vec();
  sizes.insert(sizes.begin() + std::min(first, second), length);
  sizes.insert(sizes.begin() + std::max(first, second), length);
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// (self, num_samples, replacement, generator)
bool multinomial(Arguments arguments, Outputs& outputs) {
  constexpr int64_t kMostCategories = int64_t{1} << 24;
  const at::Tensor& weights = tensor(arguments, 0);
  const int64_t count = arguments[1].toInt();
  if (weights.dim() < 1 || weights.dim() > 2 || count <= 0 ||
      !at::isFloatingType(weights.scalar_type()))
    return false;
  if (weights.numel() == 0 || weights.size(-1) > kMostCategories ||
      (!arguments[2].toBool() && count > weights.size(-1)))
    return false;
  Sizes sizes = weights.sizes().vec();
  sizes.back() = count;
  outputs.push_back(contiguous(at::kLong, std::move(sizes)));
  return true;
}

// (x1, x2, p, compute_mode)
bool cdist(Arguments arguments, Outputs& outputs) {
  const at::Tensor& a = tensor(arguments, 0);
  const at::Tensor& b = tensor(arguments, 1);
  if (a.dim() < 2 || b.dim() < 2 || !is_full_float(a) || a.scalar_type() != b.scalar_type() ||
      a.numel() == 0 || b.numel() == 0 || a.size(-1) != b.size(-1))
    return false;
  const auto batch_a = a.sizes().slice(0, static_cast<size_t>(a.dim() - 2));
  const auto batch_b = b.sizes().slice(0, static_cast<size_t>(b.dim() - 2));
  if (!batch_a.equals(batch_b) || !(arguments[2].toDouble() >= 0))
    return false;
  Sizes sizes = batch_a.vec();
  sizes.insert(sizes.end(), {a.size(-2), b.size(-2)});
  outputs.push_back(contiguous(a.scalar_type(), std::move(sizes)));
  return true;
}

}  // namespace

Table indexing_table() {
  return {
      {"aten::embedding", embedding},
      {"aten::embedding_dense_backward", embedding_dense_backward},
      {"aten::index_select", index_select},
      {"aten::index_add", index_nothing},
      {"aten::index_reduce", index_nothing},
      {"aten::multinomial", multinomial},
      {"aten::_cdist_forward", cdist},
      {"aten::repeat", repeat},
      {"aten::repeat_interleave.Tensor", repeat_interleave},
      {"aten::stack", stack},
      {"aten::constant_pad_nd", constant_pad},
      {"aten::roll", roll},
      {"aten::index_fill.int_Scalar", index_fill},
      {"aten::index_fill.int_Tensor", index_fill},
      {"aten::diag_embed", diag_embed},
      {"aten::put", put},
      {"aten::index_put", index_put},
      {"aten::_index_put_impl", index_put},
      {"aten::narrow_copy", narrow_copy},
      {"aten::bucketize.Tensor", bucketize},
  };
}

}  // namespace torch_remote::client::shapes
