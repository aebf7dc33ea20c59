#include "client/kernels/nested.h"

#include <algorithm>

#include <ATen/NestedTensorImpl.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_nested_from_padded.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "client/kernels/boxed.h"
#include "marshal/operator_table.h"

namespace torch_remote::client::kernels {
namespace {

using at::native::NestedTensorImpl;

constexpr c10::DispatchKeySet kOfNested(c10::DispatchKey::NestedTensorCPU);

const NestedTensorImpl& impl_of(const at::Tensor& nested) {
  return *at::native::get_nested_tensor_impl(nested);
}

const at::Tensor& sizes_of(const at::Tensor& nested) {
  return impl_of(nested).get_nested_sizes();
}

at::Tensor wrap(const at::Tensor& buffer, const at::Tensor& sizes) {
  return at::detail::make_tensor<NestedTensorImpl>(buffer.reshape({-1}), sizes);
}

// The first elements of the buffer, which may be larger than its tensor.
at::Tensor elements_of(const at::Tensor& nested, int64_t count) {
  return impl_of(nested).get_buffer().narrow(0, 0, count);
}

bool is_dense_nested(const at::Tensor& tensor) {
  return tensor.is_nested() && tensor.is_contiguous();
}

// PyTorch's kernels read sizes, strides and offsets at their address.
void check_on_host(const at::Tensor& sizes) {
  TORCH_CHECK(sizes.device().is_cpu(),
              "expected the sizes, strides and offsets of a nested tensor to be on the CPU, but "
              "they are on ",
              sizes.device());
}

void check_on_host(const c10::OperatorHandle& operation, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = operation.schema().arguments()[i].name();
    const bool has_sizes = name == "offsets" || name.find("nested_s") != name.npos;
    if (has_sizes && arguments[i].isTensor())
      check_on_host(arguments[i].toTensor());
  }
}

// Whether each part lies inside its row of `padded`.
bool fits(const at::Tensor& padded, const at::Tensor& sizes) {
  if (sizes.scalar_type() != at::kLong || sizes.dim() != 2 || sizes.size(0) == 0 ||
      sizes.size(0) != padded.size(0) || sizes.size(1) != padded.dim() - 1)
    return false;
  const at::Tensor rows = sizes.contiguous();
  const int64_t* size = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.numel(); ++i)
    if (size[i] < 0 || size[i] > padded.size(1 + i % rows.size(1)))
      return false;
  return true;
}

at::Tensor cut_padding(const at::Tensor& padded, const at::Tensor& sizes) {
  const at::Tensor rows = sizes.contiguous();
  const int64_t* size = rows.const_data_ptr<int64_t>();
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    at::Tensor part = padded.select(0, i);
    for (int64_t dim = 0; dim < rows.size(1); ++dim)
      part = part.narrow(dim, 0, *size++);
    parts.push_back(part.reshape({-1}));
  }
  return wrap(at::cat(parts), sizes);
}

// Batches of matrices, of which each can be multiplied with the other's.
bool is_batched_product(const at::Tensor& self, const at::Tensor& other) {
  if (!self.is_nested() || !other.is_nested() || self.dim() < 3 || self.dim() != other.dim())
    return false;
  const at::Tensor& a = sizes_of(self);
  const at::Tensor& b = sizes_of(other);
  return a.size(0) > 0 && a.size(0) == b.size(0) &&
         at::equal(a.slice(1, 0, -2), b.slice(1, 0, -2)) &&
         at::equal(a.select(1, -1), b.select(1, -2));
}

// A sum over the last dimension.
struct Segments {
  at::Tensor sizes;    // of the sum
  at::Tensor numbers;  // for each element of the input, the element of the sum that it is part of
};

Segments segments_of(const at::Tensor& nested) {
  const at::Tensor& sizes = sizes_of(nested);
  at::Tensor reduced = sizes.clone();
  reduced.select(1, -1).fill_(1);
  const at::Tensor lengths = at::repeat_interleave(sizes.select(1, -1), at::prod(reduced, -1));
  return {reduced, at::repeat_interleave(lengths).to(nested.device())};
}

bool is_last_dim_sum(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                     std::optional<at::ScalarType> dtype) {
  const bool has_kernel = self.scalar_type() != at::kBool && !self.is_complex();
  return is_dense_nested(self) && self.size(0) > 0 && self.dim() > 1 && dims.has_value() &&
         dims->size() == 1 && at::maybe_wrap_dim((*dims)[0], self.dim()) == self.dim() - 1 &&
         keepdim && !dtype.has_value() && has_kernel;
}

// Whether the parts end in dimensions of these sizes.
bool ends_in(const at::Tensor& nested, at::IntArrayRef normalized) {
  const auto count = static_cast<int64_t>(normalized.size());
  if (count == 0 || count >= nested.dim())
    return false;
  for (int64_t i = 0; i < count; ++i)
    if (impl_of(nested).opt_size(nested.dim() - count + i) != normalized[i] || normalized[i] == 0)
      return false;
  return true;
}

bool has_sizes(const std::optional<at::Tensor>& tensor, at::IntArrayRef sizes) {
  return tensor.has_value() && tensor->defined() && !tensor->is_nested() &&
         tensor->sizes() == sizes;
}

// Rows that are normalized, as many as `nested` has: a gradient's buffer may have others.
c10::DimVector row_sizes(const at::Tensor& nested, at::IntArrayRef normalized) {
  c10::DimVector sizes{nested.numel() / c10::multiply_integers(normalized)};
  sizes.append(normalized.begin(), normalized.end());
  return sizes;
}

at::Tensor rows_of(const at::Tensor& nested, at::IntArrayRef sizes) {
  return elements_of(nested, c10::multiply_integers(sizes)).view(sizes);
}

}  // namespace

void make_nested(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  check_on_host(operation, torch::jit::last(*stack, operation.schema().arguments().size()));
  run_kernel_of(c10::DispatchKey::CPU, operation, stack);
}

// PyTorch's kernel picks elements by a mask, and waits for their number.
at::Tensor nested_from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool swaps_heads) {
  check_on_host(sizes);
  if (swaps_heads && padded.dim() == 4) {
    const at::Tensor swapped = padded.permute({0, 2, 1, 3}).contiguous().flatten(2);
    if (fits(swapped, sizes))
      return cut_padding(swapped, sizes);
  }
  if (!swaps_heads && padded.dim() > 0 && fits(padded, sizes))
    return cut_padding(padded, sizes);
  return at::_ops::_nested_from_padded::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   padded, sizes, swaps_heads);
}

namespace {

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor nested_matmul(const at::Tensor& self, const at::Tensor& other) {
  if (!is_batched_product(self, other))
    return at::_ops::matmul::redispatch(kOfNested, self, other);
  at::Tensor sizes = sizes_of(self).clone();
  sizes.select(1, -1).copy_(sizes_of(other).select(1, -1));
  const at::Tensor a = self.contiguous().to_padded_tensor(0);
  const at::Tensor b = other.contiguous().to_padded_tensor(0);
  return cut_padding(at::matmul(a, b), sizes);
}

// index_add_ adds one element after the other, as PyTorch's kernel does.
at::Tensor nested_sum(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                      std::optional<at::ScalarType> dtype) {
  if (!is_last_dim_sum(self, dims, keepdim, dtype))
    return at::_ops::sum_dim_IntList::redispatch(kOfNested, self, dims, keepdim, dtype);
  const at::Tensor buffer = elements_of(self, self.numel());
  const auto [sizes, numbers] = segments_of(self);
  const at::Tensor sum = at::zeros({at::prod(sizes, -1).sum().item<int64_t>()}, buffer.options());
  return wrap(sum.index_add_(0, numbers, buffer), sizes);
}

at::Tensor nested_sum_backward(const at::Tensor& grad, const at::Tensor& self,
                               at::OptionalIntArrayRef, bool) {
  const at::Tensor numbers = segments_of(self).numbers;
  return wrap(impl_of(grad).get_buffer().index_select(0, numbers), sizes_of(self));
}

ThreeTensors nested_layer_norm(const at::Tensor& input, at::IntArrayRef normalized,
                               const std::optional<at::Tensor>& weight,
                               const std::optional<at::Tensor>& bias, double eps) {
  if (!is_dense_nested(input) || !ends_in(input, normalized) || !has_sizes(weight, normalized) ||
      !has_sizes(bias, normalized))
    return at::_ops::native_layer_norm::redispatch(
        kOfNested, input, c10::fromIntArrayRefSlow(normalized), weight, bias, eps);
  const auto [output, mean, rstd] = at::native_layer_norm(
      rows_of(input, row_sizes(input, normalized)), normalized, weight, bias, eps);
  return {wrap(output, sizes_of(input)), mean.flatten(), rstd.flatten()};
}

ThreeTensors nested_layer_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                        at::IntArrayRef normalized, const at::Tensor& mean,
                                        const at::Tensor& rstd,
                                        const std::optional<at::Tensor>& weight,
                                        const std::optional<at::Tensor>& bias,
                                        std::array<bool, 3> wanted) {
  const c10::DimVector sizes = row_sizes(input, normalized);
  const at::Tensor rows = rows_of(input, sizes);
  const auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(
      rows_of(grad, sizes), rows, normalized, mean, rstd, weight, bias, wanted);
  return {wrap(wanted[0] ? of_input : at::zeros_like(rows), sizes_of(input)), of_weight, of_bias};
}

ThreeTensors nested_transform_qkv(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads) {
  return at::_transform_bias_rescale_qkv(qkv.to_padded_tensor(0), bias, heads);
}

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
