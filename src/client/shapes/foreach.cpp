#include <algorithm>
#include <array>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

// Elementwise over lists, one floating dtype throughout: each result is like its first operand.
bool each_elementwise(Arguments arguments, Outputs& outputs) {
  if (!arguments[0].isTensorList())
    return false;
  const auto first = arguments[0].toListRef();
  if (first.empty())
    return false;
  wire::Output list;
  list.kind = wire::OutputKind::kList;
  const at::ScalarType dtype = first[0].toTensor().scalar_type();
  if (!at::isFloatingType(dtype))
    return false;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() || argument.isComplexDouble())
      return false;
    if (!argument.isList())
      continue;
    const auto items = argument.toListRef();
    if (items.size() != first.size())
      return false;
    if (!argument.isTensorList())
      continue;
    for (size_t i = 0; i < items.size(); ++i) {
      const at::Tensor& item = items[i].toTensor();
      // PyTorch lays out an empty result in a way of its own.
      if (!is_settled(item) || item.numel() == 0 || item.scalar_type() != dtype ||
          !item.sizes().equals(first[i].toTensor().sizes()) ||
          !item.strides().equals(first[i].toTensor().strides())) {
        return false;
      }
    }
  }
  for (const c10::IValue& item : first)
    list.items.push_back(like(item.toTensor()));
  outputs.push_back(std::move(list));
  return true;
}

// (self, ord, dtype): a number for each tensor.
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

}  // namespace

ShapeFunction find_foreach(std::string_view name) {
  if (name == "aten::_foreach_norm.Scalar")
    return each_norm;
  return is_elementwise_foreach(name) ? each_elementwise : nullptr;
}

}  // namespace torch_remote::client::shapes
