#include "client/call/overlaps.h"

#include <algorithm>

#include <ATen/MemoryOverlap.h>

namespace torch_remote::client {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

template <typename Claim>
bool holds(const c10::IValue& value, const Claim& claim) {
  if (value.isTensor())
    return value.toTensor().defined() && claim(value.toTensor());
  if (!value.isTensorList() && !value.isOptionalTensorList())
    return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), [&](const c10::IValue& item) {
    return item.isTensor() && item.toTensor().defined() && claim(item.toTensor());
  });
}

// Whether `claim(written, other)` holds for a written tensor and another argument. Skips written
// lists: they have an item for each parameter of a model, often in one storage.
template <typename Claim>
bool any_pair(const OperatorInfo& info, Arguments arguments, const Claim& claim) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!info.arguments[i].is_written || !arguments[i].isTensor() ||
        !arguments[i].toTensor().defined())
      continue;
    const at::Tensor& written = arguments[i].toTensor();
    for (size_t j = 0; j < arguments.size(); ++j)
      if (j != i &&
          holds(arguments[j], [&](const at::Tensor& other) { return claim(written, other); }))
        return true;
  }
  return false;
}

bool overlaps_itself(const OperatorInfo& info, Arguments arguments) {
  for (size_t i = 0; i < arguments.size(); ++i)
    if (info.arguments[i].is_written && holds(arguments[i], [](const at::Tensor& written) {
          return at::has_internal_overlap(written) == at::MemOverlap::Yes;
        }))
      return true;
  return false;
}

bool is_argument_twice(const OperatorInfo& info, Arguments arguments) {
  return any_pair(info, arguments, [](const at::Tensor& written, const at::Tensor& other) {
    return written.is_same(other);
  });
}

// PyTorch's shape code checks calls in place. Operators with such a form accept an input as `out=`.
bool can_write_inputs(const OperatorInfo& info) {
  return info.out_arguments.empty() ? info.meta != nullptr
                                    : has_form_in_place(info.introduction.name);
}

}  // namespace

Overlaps find_overlaps(const OperatorInfo& info, Arguments arguments) {
  Overlaps found;
  found.shares_storage =
      any_pair(info, arguments, [](const at::Tensor& written, const at::Tensor& other) {
        return !written.is_same(other) && written.is_alias_of(other);
      });
  found.may_be_refused = overlaps_itself(info, arguments) ||
                         (is_argument_twice(info, arguments) && !can_write_inputs(info));
  return found;
}

bool overlaps_in_part(const OperatorInfo& info, Arguments arguments) {
  return any_pair(info, arguments, [](const at::Tensor& written, const at::Tensor& other) {
    return at::get_overlap_status(written, other) == at::MemOverlapStatus::Partial;
  });
}

}  // namespace torch_remote::client
