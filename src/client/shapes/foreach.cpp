#include <algorithm>
#include <array>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

// A number, or a tensor that is broadcast to the first or is of its size.
bool goes_with(const c10::IValue& item, const at::Tensor& first) {
  if (!item.isTensor())
    return !item.isComplexDouble();
  const at::Tensor& tensor = item.toTensor();
  return tensor.defined() && (tensor.dim() == 0 || tensor.sizes().equals(first.sizes())) &&
         tensor.scalar_type() == first.scalar_type() && at::isFloatingType(tensor.scalar_type());
}

// False for a tensor without elements: PyTorch chooses other strides for those.
bool has_layout_of(const at::Tensor& tensor, const at::Tensor& first) {
  if (tensor.dim() == 0)
    return true;
  return is_settled(tensor) && tensor.numel() != 0 && tensor.strides().equals(first.strides());
}

// Elementwise over lists: each result is like its first operand.
bool each_elementwise(Arguments arguments, Outputs& outputs) {
  if (!arguments[0].isTensorList() || !lists_agree(arguments))
    return false;
  const auto first = arguments[0].toListRef();
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensorList())
      continue;
    const auto items = argument.toListRef();
    for (size_t i = 0; i < items.size(); ++i)
      if (!has_layout_of(items[i].toTensor(), first[i].toTensor()))
        return false;
  }
  wire::Output list;
  list.kind = wire::OutputKind::kList;
  for (const c10::IValue& item : first)
    list.items.push_back(like(item.toTensor()));
  outputs.push_back(std::move(list));
  return true;
}

// (self, exponents), where self is a number. Of other strides than the standard ones each kernel
// makes something else.
bool each_power(Arguments arguments, Outputs& outputs) {
  const auto exponents = arguments[1].toListRef();
  return !arguments[0].isComplexDouble() &&
         std::all_of(exponents.begin(), exponents.end(),
                     [](const c10::IValue& item) { return is_standard(item.toTensor()); }) &&
         each_elementwise(arguments.slice(1), outputs);
}

// (self, ord, dtype): one number for each tensor.
bool each_norm(Arguments arguments, Outputs& outputs) {
  const auto items = arguments[0].toListRef();
  if (items.empty() || !arguments[2].isNone())
    return false;
  wire::Output list;
  list.kind = wire::OutputKind::kList;
  for (const c10::IValue& item : items) {
    const at::Tensor& tensor = item.toTensor();
    if (!is_strided(tensor) || !at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0)
      return false;
    list.items.push_back(scalar(tensor.scalar_type()));
  }
  outputs.push_back(std::move(list));
  return true;
}

constexpr std::array<std::string_view, 18> kForeachElementwise = {
    "add",     "sub",     "mul",     "div",  "sqrt", "neg",        "exp",   "abs",  "maximum",
    "minimum", "addcmul", "addcdiv", "lerp", "pow",  "reciprocal", "rsqrt", "sign", "clamp_min",
};

bool is_elementwise_foreach(std::string_view name) {
  constexpr std::string_view kPrefix = "aten::_foreach_";
  if (!name.starts_with(kPrefix) || name.find(".out") != name.npos ||
      name.find("_out") != name.npos)
    return false;
  const std::string_view base = name.substr(kPrefix.size(), name.find('.') - kPrefix.size());
  return std::find(kForeachElementwise.begin(), kForeachElementwise.end(), base) !=
         kForeachElementwise.end();
}

// One operand for all tensors of a list has no dimensions.
bool goes_with_all(const c10::IValue& argument, c10::ArrayRef<c10::IValue> first) {
  const at::Tensor& tensor = argument.toTensor();
  return tensor.defined() && tensor.dim() == 0 &&
         std::all_of(first.begin(), first.end(),
                     [&](const c10::IValue& item) { return goes_with(argument, item.toTensor()); });
}

}  // namespace

bool lists_agree(Arguments arguments) {
  const auto first = arguments[0].toListRef();
  for (const c10::IValue& argument : arguments) {
    if (argument.isComplexDouble())
      return false;
    if (argument.isTensor() && !goes_with_all(argument, first))
      return false;
    if (!argument.isList())
      continue;
    const auto items = argument.toListRef();
    if (items.size() != first.size())
      return false;
    for (size_t i = 0; i < items.size(); ++i)
      if (!goes_with(items[i], first[i].toTensor()))
        return false;
  }
  return true;
}

ShapeFunction find_foreach(std::string_view name) {
  if (name == "aten::_foreach_norm.Scalar")
    return each_norm;
  if (name == "aten::_foreach_pow.ScalarAndTensor")
    return each_power;
  return is_elementwise_foreach(name) ? each_elementwise : nullptr;
}

}  // namespace torch_remote::client::shapes
