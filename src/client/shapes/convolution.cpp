#include <algorithm>

#include <c10/core/MemoryFormat.h>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {
namespace {

struct Convolution {
  at::Tensor input;
  at::Tensor weight;
  Sizes stride;
  Sizes padding;
  Sizes dilation;
  bool transposed;
  Sizes output_padding;
  int64_t groups;
};

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups); `from` is input's place.
Convolution read(Arguments arguments, size_t from) {
  return {tensor(arguments, from),       tensor(arguments, from + 1),
          integers(arguments[from + 3]), integers(arguments[from + 4]),
          integers(arguments[from + 5]), arguments[from + 6].toBool(),
          integers(arguments[from + 7]), arguments[from + 8].toInt()};
}

bool is_known(const Convolution& call) {
  const auto spatial = static_cast<size_t>(std::max<int64_t>(call.input.dim() - 2, 0));
  return spatial >= 1 && spatial <= 3 && call.weight.dim() == call.input.dim() &&
         call.stride.size() == spatial && call.padding.size() == spatial &&
         call.dilation.size() == spatial && call.output_padding.size() == spatial &&
         call.groups > 0 && call.input.numel() > 0 && call.weight.numel() > 0 &&
         at::isFloatingType(call.input.scalar_type()) &&
         call.input.scalar_type() == call.weight.scalar_type();
}

bool channels_match(const Convolution& call) {
  const int64_t in = call.transposed ? call.weight.size(0) : call.weight.size(1) * call.groups;
  return call.input.size(1) == in && call.weight.size(0) % call.groups == 0;
}

// 0 or less where the kernel would raise.
int64_t output_size(const Convolution& call, size_t i) {
  const auto dim = static_cast<int64_t>(i) + 2;
  const int64_t reach = call.dilation[i] * (call.weight.size(dim) - 1) + 1;
  if (call.stride[i] <= 0 || call.dilation[i] <= 0 || call.padding[i] < 0)
    return 0;
  if (call.transposed) {
    return (call.input.size(dim) - 1) * call.stride[i] - 2 * call.padding[i] + reach +
           call.output_padding[i];
  }
  const int64_t room = call.input.size(dim) + 2 * call.padding[i] - reach;
  return room < 0 ? 0 : room / call.stride[i] + 1;
}

int64_t output_channels(const Convolution& call) {
  return call.transposed ? call.weight.size(1) * call.groups : call.weight.size(0);
}

// Which kernel runs decides the layout, but for these all of them agree.
bool is_channels_last_call(const Convolution& call) {
  return is_channels_last(call.input) && is_plain(call.weight) &&
         (call.input.scalar_type() == at::kFloat || call.input.scalar_type() == at::kBFloat16);
}

bool convolution(Arguments arguments, Outputs& outputs) {
  const Convolution call = read(arguments, 0);
  if (!is_known(call) || !channels_match(call))
    return false;
  if (!fits(optional_tensor(arguments, 2), call.input.scalar_type(), {output_channels(call)}))
    return false;
  Sizes sizes = {call.input.size(0), output_channels(call)};
  for (size_t i = 0; i < call.stride.size(); ++i) {
    sizes.push_back(output_size(call, i));
    if (sizes.back() <= 0)
      return false;
  }
  if (is_standard(call.input) && is_standard(call.weight)) {
    outputs.push_back(contiguous(call.input.scalar_type(), std::move(sizes)));
    return true;
  }
  if (!is_channels_last_call(call))
    return false;
  Sizes strides = c10::get_channels_last_strides_2d(sizes);
  outputs.push_back(fresh(call.input.scalar_type(), std::move(sizes), std::move(strides)));
  return true;
}

// (grad_output, input, weight, bias_sizes, stride, …, groups, output_mask)
bool convolution_backward(Arguments arguments, Outputs& outputs) {
  const Convolution call = read(arguments, 1);
  if (!is_known(call) || !channels_match(call) || !is_standard(call.input) ||
      !is_standard(call.weight))
    return false;
  if (tensor(arguments, 0).scalar_type() != call.input.scalar_type())
    return false;
  const auto mask = arguments[10].toBoolList();
  outputs.push_back(mask[0] ? like(call.input) : wire::Output());
  outputs.push_back(mask[1] ? like(call.weight) : wire::Output());
  outputs.push_back(mask[2] ? contiguous(call.input.scalar_type(), {output_channels(call)})
                            : wire::Output());
  return true;
}

}  // namespace

Table convolution_table() {
  return {
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
  };
}

}  // namespace torch_remote::client::shapes
