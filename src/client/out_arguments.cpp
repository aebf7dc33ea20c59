#include "client/out_arguments.h"

#include <algorithm>

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

namespace torch_remote::client {
namespace {

bool is_mentioned(c10::ArrayRef<c10::IValue> arguments, const at::Tensor& tensor) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& argument) {
    if (argument.isTensor())
      return argument.toTensor().is_same(tensor);
    if (!argument.isTensorList())
      return false;
    const auto items = argument.toListRef();
    return std::any_of(items.begin(), items.end(),
                       [&](const c10::IValue& item) { return item.toTensor().is_same(tensor); });
  });
}

// Whether a tensor among the arguments, other than itself, lies in the same storage.
bool shares_storage(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> arguments) {
  const auto shares = [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && !value.toTensor().is_same(tensor) &&
           value.toTensor().is_alias_of(tensor);
  };
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    if (!value.isTensorList())
      return shares(value);
    const auto items = value.toListRef();
    return std::any_of(items.begin(), items.end(), shares);
  });
}

// arange and its kin fill an `out=` of the right number of elements whatever its shape.
bool takes_any_shape(const OperatorInfo& info) {
  constexpr std::string_view kRanges[] = {"aten::arange", "aten::range", "aten::linspace",
                                          "aten::logspace"};
  return std::find(std::begin(kRanges), std::end(kRanges), info.introduction.name) !=
         std::end(kRanges);
}

}  // namespace

bool outs_are_tensors(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  for (const uint32_t index : info.out_arguments) {
    if (!arguments[index].isTensor())
      return false;
  }
  return true;
}

bool resize_outs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                 const std::vector<at::Tensor>& metas) {
  bool resized = false;
  for (size_t i = 0; i < info.out_arguments.size(); ++i) {
    const at::Tensor& out = arguments[info.out_arguments[i]].toTensor();
    if (!out.defined() || out.sizes().equals(metas[i].sizes()))
      continue;
    if (out.numel() == metas[i].numel() && takes_any_shape(info))
      continue;
    resized |= at::native::resize_output(out, metas[i].sizes());
    if (!out.strides().equals(metas[i].strides()) && out.sizes().equals(metas[i].sizes())) {
      out.unsafeGetTensorImpl()->set_sizes_and_strides(metas[i].sizes(), metas[i].strides());
    }
  }
  return resized;
}

bool resizes_inputs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                    const std::vector<at::Tensor>& metas) {
  for (size_t i = 0; i < metas.size(); ++i) {
    const at::Tensor& out = arguments[info.out_arguments[i]].toTensor();
    if (out.defined() && !out.sizes().equals(metas[i].sizes()) &&
        is_mentioned(arguments.slice(0, info.out_arguments.front()), out))
      return true;
  }
  return false;
}

bool is_doubtful(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (info.out_arguments.empty())
    return false;
  for (const uint32_t index : info.out_arguments) {
    const at::Tensor& out = arguments[index].toTensor();
    if (at::has_internal_overlap(out) == at::MemOverlap::Yes || shares_storage(out, arguments))
      return true;
  }
  const c10::IValue& first = arguments[0];
  if (!first.isTensor() && !(first.isTensorList() && !first.toListRef().empty()))
    return false;
  const at::Tensor& input = first.isTensor() ? first.toTensor() : first.toListRef()[0].toTensor();
  return input.defined() &&
         std::any_of(info.out_arguments.begin(), info.out_arguments.end(), [&](uint32_t index) {
           return arguments[index].toTensor().scalar_type() != input.scalar_type();
         });
}

bool has_empty_out(const std::vector<at::Tensor>& outs) {
  return std::any_of(outs.begin(), outs.end(),
                     [](const at::Tensor& out) { return out.defined() && out.numel() == 0; });
}

}  // namespace torch_remote::client
