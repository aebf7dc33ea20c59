#include <algorithm>
#include <initializer_list>

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

// `from` is the index of the input; then weight, bias, stride, padding, dilation, transposed,
// output_padding, groups.
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

// 0 or less if the kernel would raise.
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

// With one spatial dimension PyTorch makes the input contiguous first.
bool is_standard_input(const at::Tensor& input) {
  return input.dim() == 3 ? becomes_standard(input) : is_standard(input);
}

// The layout depends on which kernel runs, but all kernels agree on these calls.
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
  if (is_standard_input(call.input) && is_standard(call.weight)) {
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
  if (!is_known(call) || !channels_match(call) || !is_standard_input(call.input) ||
      !is_standard(call.weight))
    return false;
  if (tensor(arguments, 0).scalar_type() != call.input.scalar_type())
    return false;
  const auto mask = arguments[10].toBoolList();
  outputs.push_back(mask[0] ? contiguous(call.input.scalar_type(), call.input.sizes().vec())
                            : wire::Output());
  outputs.push_back(mask[1] ? like(call.weight) : wire::Output());
  outputs.push_back(mask[2] ? contiguous(call.input.scalar_type(), {output_channels(call)})
                            : wire::Output());
  return true;
}

bool is_pooled(const at::Tensor& input, int64_t spatial) {
  return at::isFloatingType(input.scalar_type()) && input.numel() > 0 &&
         (input.dim() == spatial + 1 || input.dim() == spatial + 2);
}

// (self, output_size)
bool adaptive_average(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const Sizes size = integers(arguments[1]);
  const auto spatial = static_cast<int64_t>(size.size());
  if (!is_pooled(input, spatial) || !is_standard(input))
    return false;
  Sizes sizes = input.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - spatial);
  if (std::any_of(size.begin(), size.end(), [](int64_t length) { return length <= 0; }))
    return false;
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// The number of places for a window of `kernel` in two dimensions; 0 if the arguments are wrong.
int64_t count_windows(int64_t height, int64_t width, const Sizes& kernel, const Sizes& dilation,
                      const Sizes& padding, const Sizes& stride) {
  int64_t count = 1;
  for (size_t i = 0; i < 2; ++i) {
    if (kernel[i] <= 0 || dilation[i] <= 0 || padding[i] < 0 || stride[i] <= 0)
      return 0;
    const int64_t room =
        (i == 0 ? height : width) + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
    count *= room < 0 ? 0 : room / stride[i] + 1;
  }
  return count;
}

bool are_pairs(std::initializer_list<const Sizes*> lists) {
  return std::all_of(lists.begin(), lists.end(),
                     [](const Sizes* list) { return list->size() == 2; });
}

// (self, kernel_size, dilation, padding, stride)
bool im2col(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const Sizes kernel = integers(arguments[1]);
  const Sizes dilation = integers(arguments[2]);
  const Sizes padding = integers(arguments[3]);
  const Sizes stride = integers(arguments[4]);
  if (!are_pairs({&kernel, &dilation, &padding, &stride}))
    return false;
  if (input.dim() != 3 && input.dim() != 4)
    return false;
  if (input.size(-3) == 0 || input.size(-2) == 0 || input.size(-1) == 0)
    return false;
  const int64_t windows =
      count_windows(input.size(-2), input.size(-1), kernel, dilation, padding, stride);
  if (windows == 0)
    return false;
  Sizes sizes{input.size(-3) * kernel[0] * kernel[1], windows};
  if (input.dim() == 4)
    sizes.insert(sizes.begin(), input.size(0));
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

// (grad_output, self)
template <int64_t kSpatial>
bool adaptive_average_backward(Arguments arguments, Outputs& outputs) {
  const at::Tensor& grad = tensor(arguments, 0);
  const at::Tensor& input = tensor(arguments, 1);
  if (!is_pooled(input, kSpatial) || !is_standard(input) || grad.dim() != input.dim() ||
      grad.numel() == 0 || grad.scalar_type() != input.scalar_type() ||
      !grad.sizes()
           .slice(0, static_cast<size_t>(grad.dim() - kSpatial))
           .equals(input.sizes().slice(0, static_cast<size_t>(grad.dim() - kSpatial))))
    return false;
  outputs.push_back(like(input));
  return true;
}

// (self, output_size, kernel_size, dilation, padding, stride)
bool col2im(Arguments arguments, Outputs& outputs) {
  const at::Tensor& input = tensor(arguments, 0);
  const Sizes size = integers(arguments[1]);
  const Sizes kernel = integers(arguments[2]);
  const Sizes dilation = integers(arguments[3]);
  const Sizes padding = integers(arguments[4]);
  const Sizes stride = integers(arguments[5]);
  if (!are_pairs({&size, &kernel, &dilation, &padding, &stride}) || input.numel() == 0)
    return false;
  if (input.dim() != 2 && input.dim() != 3)
    return false;
  const int64_t windows = count_windows(size[0], size[1], kernel, dilation, padding, stride);
  if (windows == 0 || input.size(-1) != windows || input.size(-2) % (kernel[0] * kernel[1]) != 0)
    return false;
  Sizes sizes{input.size(-2) / (kernel[0] * kernel[1]), size[0], size[1]};
  if (input.dim() == 3)
    sizes.insert(sizes.begin(), input.size(0));
  outputs.push_back(contiguous(input.scalar_type(), std::move(sizes)));
  return true;
}

}  // namespace

Table convolution_table() {
  return {
      {"aten::_adaptive_avg_pool2d", adaptive_average},
      {"aten::_adaptive_avg_pool3d", adaptive_average},
      {"aten::_adaptive_avg_pool2d_backward", adaptive_average_backward<2>},
      {"aten::_adaptive_avg_pool3d_backward", adaptive_average_backward<3>},
      {"aten::im2col", im2col},
      {"aten::col2im", col2im},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
  };
}

}  // namespace torch_remote::client::shapes
