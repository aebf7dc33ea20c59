// Our own shape functions, for hot operators whose Meta kernel is Python. Each answers only what it is sure of.

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "client/operator.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;
using Outputs = std::vector<wire::Output>;
using Sizes = std::vector<int64_t>;

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

// What empty_like gives, and an elementwise kernel for one input: the same strides, where the input is dense.
wire::Output like(const at::Tensor& tensor) {
  return fresh(tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec());
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense() &&
         !tensor.is_conj() && !tensor.is_neg();
}

const at::Tensor& tensor(Arguments arguments, size_t index) { return arguments[index].toTensor(); }

Sizes integers(const c10::IValue& value) { return value.toIntVector(); }

bool shape_like_first(Arguments arguments, Outputs& outputs) {
  if (!is_plain(tensor(arguments, 0))) return false;
  outputs.push_back(like(tensor(arguments, 0)));
  return true;
}

bool shape_native_dropout(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  if (!is_plain(input) || arguments[2].isNone() || !arguments[2].toBool()) return false;
  outputs.push_back(like(input));
  outputs.push_back(fresh(at::kBool, input.sizes().vec(), input.strides().vec()));
  return true;
}

bool has_same_dtype(const at::Tensor& input, const c10::IValue& other) {
  return other.isNone() || !other.toTensor().defined() || other.toTensor().scalar_type() == input.scalar_type();
}

bool is_full_float(const at::Tensor& input) {
  return input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
}

// Statistics have one element for each normalised row, and keep the input's number of dimensions.
bool shape_layer_norm(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const Sizes normalized = integers(arguments[1]);
  if (!input.is_contiguous() || !is_full_float(input) || !has_same_dtype(input, arguments[2]) ||
      !has_same_dtype(input, arguments[3]) || normalized.empty() ||
      input.dim() < static_cast<int64_t>(normalized.size())) {
    return false;
  }
  Sizes sizes = input.sizes().vec();
  const size_t outer = sizes.size() - normalized.size();
  if (!std::equal(normalized.begin(), normalized.end(), sizes.begin() + static_cast<long>(outer))) return false;
  for (const size_t weight : {2, 3}) {
    if (arguments[weight].isNone() || !arguments[weight].toTensor().defined()) continue;
    if (arguments[weight].toTensor().sizes() != c10::IntArrayRef(normalized)) return false;
  }
  outputs.push_back(contiguous(input.scalar_type(), sizes));
  std::fill(sizes.begin() + static_cast<long>(outer), sizes.end(), 1);
  outputs.push_back(contiguous(input.scalar_type(), sizes));
  outputs.push_back(contiguous(input.scalar_type(), sizes));
  return true;
}

bool shape_layer_norm_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 1);
  if (!input.is_contiguous() || !tensor(arguments, 0).is_contiguous() || !is_full_float(input)) return false;
  const auto mask = arguments[7].toBoolList();
  for (size_t i = 0; i < 3; ++i) {
    const bool wanted = mask[i];
    if (!wanted) {
      outputs.emplace_back();
      continue;
    }
    if (i == 0) {
      outputs.push_back(like(input));
      continue;
    }
    const c10::IValue& weight = arguments[4 + i];
    if (weight.isNone() || !weight.toTensor().defined()) return false;
    if (!weight.toTensor().is_contiguous()) return false;
    outputs.push_back(like(weight.toTensor()));
  }
  return true;
}

bool shape_embedding(Arguments arguments, Outputs& outputs) {
  const at::Tensor& weight = tensor(arguments, 0);
  const at::Tensor& indices = tensor(arguments, 1);
  if (weight.dim() != 2 || !weight.is_contiguous() || !indices.is_contiguous()) return false;
  if (indices.scalar_type() != at::kLong && indices.scalar_type() != at::kInt) return false;
  Sizes sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  outputs.push_back(contiguous(weight.scalar_type(), std::move(sizes)));
  return true;
}

bool shape_embedding_dense_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& grad = tensor(arguments, 0);
  if (grad.dim() == 0) return false;
  outputs.push_back(contiguous(grad.scalar_type(), {arguments[2].toInt(), grad.size(-1)}));
  return true;
}

bool shape_clone(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const auto format = arguments[1].isNone() ? at::MemoryFormat::Preserve : arguments[1].toMemoryFormat();
  if (input.is_conj() || input.is_neg() || input.layout() != at::kStrided) return false;
  if (format == at::MemoryFormat::Contiguous) {
    outputs.push_back(contiguous(input.scalar_type(), input.sizes().vec()));
    return true;
  }
  return format == at::MemoryFormat::Preserve && shape_like_first(arguments, outputs);
}

bool shape_masked_fill(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& mask = tensor(arguments, 1);
  if (!input.is_contiguous() || mask.scalar_type() != at::kBool || mask.dim() > input.dim()) return false;
  for (int64_t i = 1; i <= mask.dim(); ++i) {
    if (mask.size(-i) != 1 && mask.size(-i) != input.size(-i)) return false;
  }
  outputs.push_back(like(input));
  return true;
}

bool shape_where(Arguments arguments, Outputs& outputs) {
  const at::Tensor& condition = tensor(arguments, 0);
  const at::Tensor& a = tensor(arguments, 1);
  const at::Tensor& b = tensor(arguments, 2);
  if (condition.scalar_type() != at::kBool || a.scalar_type() != b.scalar_type()) return false;
  if (!condition.sizes().equals(a.sizes()) || !a.sizes().equals(b.sizes())) return false;
  if (!condition.is_contiguous() || !a.is_contiguous() || !b.is_contiguous()) return false;
  outputs.push_back(like(a));
  return true;
}

bool shape_index_select(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& index = tensor(arguments, 2);
  if (input.dim() == 0 || index.dim() > 1) return false;
  const int64_t dim = arguments[1].toInt() < 0 ? arguments[1].toInt() + input.dim() : arguments[1].toInt();
  if (dim < 0 || dim >= input.dim()) return false;
  Sizes sizes = input.sizes().vec();
  sizes[static_cast<size_t>(dim)] = index.numel();
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// conv: (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
bool shape_convolution(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const at::Tensor& weight = tensor(arguments, 1);
  if (!input.is_contiguous() || !weight.is_contiguous() || input.dim() != 4 || weight.dim() != 4) return false;
  if (input.scalar_type() != weight.scalar_type() || arguments[6].toBool()) return false;
  if (input.size(1) != weight.size(1) * arguments[8].toInt()) return false;
  const Sizes stride = integers(arguments[3]);
  const Sizes padding = integers(arguments[4]);
  const Sizes dilation = integers(arguments[5]);
  Sizes sizes = {input.size(0), weight.size(0)};
  for (size_t i = 0; i < 2; ++i) {
    if (stride.size() != 2 || padding.size() != 2 || dilation.size() != 2 || stride[i] <= 0) return false;
    const auto d = static_cast<int64_t>(i) + 2;
    const int64_t size = (input.size(d) + 2 * padding[i] - dilation[i] * (weight.size(d) - 1) - 1) / stride[i] + 1;
    if (size <= 0) return false;
    sizes.push_back(size);
  }
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// Elementwise over lists, one floating dtype throughout: each result is like its first operand.
bool shape_foreach(Arguments arguments, Outputs& outputs) {
  const auto first = arguments[0].toListRef();
  if (first.empty()) return false;
  wire::Output list;
  list.kind = wire::OutputKind::kList;
  const at::ScalarType dtype = first[0].toTensor().scalar_type();
  if (!at::isFloatingType(dtype)) return false;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) return false;
    if (!argument.isTensorList()) continue;
    const auto items = argument.toListRef();
    if (items.size() != first.size()) return false;
    for (size_t i = 0; i < items.size(); ++i) {
      const at::Tensor& item = items[i].toTensor();
      if (!is_plain(item) || item.scalar_type() != dtype || !item.sizes().equals(first[i].toTensor().sizes()) ||
          !item.strides().equals(first[i].toTensor().strides())) {
        return false;
      }
    }
  }
  for (const c10::IValue& item : first) list.items.push_back(like(item.toTensor()));
  outputs.push_back(std::move(list));
  return true;
}

constexpr std::array<std::string_view, 18> kForeachElementwise = {
    "add", "sub", "mul", "div", "sqrt", "neg", "exp", "abs", "maximum", "minimum",
    "addcmul", "addcdiv", "lerp", "pow", "reciprocal", "rsqrt", "sign", "clamp_min",
};

bool is_elementwise_foreach(std::string_view name) {
  constexpr std::string_view kPrefix = "aten::_foreach_";
  if (!name.starts_with(kPrefix) || name.find(".out") != name.npos || name.find("_out") != name.npos) return false;
  const std::string_view base = name.substr(kPrefix.size(), name.find('.') - kPrefix.size());
  return std::find(kForeachElementwise.begin(), kForeachElementwise.end(), base) != kForeachElementwise.end();
}

}  // namespace

ShapeFunction find_shape_function(std::string_view name) {
  static const std::unordered_map<std::string_view, ShapeFunction> table = {
      {"aten::relu", shape_like_first},
      {"aten::native_dropout", shape_native_dropout},
      {"aten::native_layer_norm", shape_layer_norm},
      {"aten::native_layer_norm_backward", shape_layer_norm_backward},
      {"aten::embedding", shape_embedding},
      {"aten::embedding_dense_backward", shape_embedding_dense_backward},
      {"aten::clone", shape_clone},
      {"aten::masked_fill.Scalar", shape_masked_fill},
      {"aten::masked_fill.Tensor", shape_masked_fill},
      {"aten::where.self", shape_where},
      {"aten::index_select", shape_index_select},
      {"aten::convolution", shape_convolution},
  };
  const auto found = table.find(name);
  if (found != table.end()) return found->second;
  return is_elementwise_foreach(name) ? shape_foreach : nullptr;
}

}  // namespace torch_remote::client
