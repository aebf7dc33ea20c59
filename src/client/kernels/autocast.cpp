#include <vector>

#include <ATen/autocast_mode.h>

#include "client/kernels/table.h"
#include "client/memory/server_branch.h"

// Note [Autocast]
//
// These kernels run only while autocast is on for our device: the dispatcher skips their key
// otherwise. They cast the arguments on the server and call the operator again with autocast off.
// The lists of operators are PyTorch's own, in ATen/autocast_mode.h, as CUDA registers them. They
// do not depend on the server's device, so a script has the same dtypes on every server.
namespace torch_remote::client::kernels {
namespace {

using at::Tensor;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;

Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast: the input of the logarithm can round to 0 or 1. Leave out the sigmoid "
              "before it and use torch.nn.functional.binary_cross_entropy_with_logits or "
              "torch.nn.BCEWithLogitsLoss, which are safe to autocast.");
}

// Not cached: cuDNN's casts of its weights are not cached either, so gradients are added in float.
Tensor to_half(const Tensor& tensor) {
  return at::autocast::is_eligible(tensor, kDevice) ? tensor.to(at::kHalf) : tensor;
}

c10::IValue to_half(const c10::IValue& value) {
  if (value.isTensor())
    return to_half(value.toTensor());
  if (!value.isTensorList())
    return value;
  std::vector<Tensor> tensors = value.toTensorVector();
  for (Tensor& tensor : tensors)
    tensor = to_half(tensor);
  return tensors;
}

// For _cudnn_rnn. CUDA casts it to float16, whatever dtype autocast has.
void call_in_half(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(kKey);
  const size_t count = operation.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, count);
    value = to_half(value);
  }
  operation.callBoxed(stack);
}

// For recurrent layers. A CUDA server has _cudnn_rnn for them, or operators of the lists. A CPU
// server has other operators, so there the layer is cast as _cudnn_rnn is.
void recurrent_layer(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const size_t count = operation.schema().arguments().size();
  const Tensor input = torch::jit::peek(*stack, 0, count).toTensor();
  if (input.device().is_privateuseone() && is_on_cpu_server(input)) {
    call_in_half(operation, stack);
    return;
  }
  constexpr c10::DispatchKeySet kAfter(c10::DispatchKeySet::FULL_AFTER, kKey);
  operation.redispatchBoxed(keys & kAfter, stack);
}

}  // namespace

// The macros of ATen/autocast_mode.h register with `m`.
#define LOWER_PRECISION_FP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

void register_autocast(torch::Library& m) {
  using namespace at;  // for the types in the macros, some of which only torch 2.11 has
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION_FP)
  LOWER_PRECISION_FP(cudnn_convolution)
  LOWER_PRECISION_FP(cudnn_convolution_transpose)
  AT_FORALL_FP32(FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(PROMOTE)
  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
  m.impl("_cudnn_rnn", torch::CppFunction::makeFromBoxedFunction<&call_in_half>());
  for (const char* name : {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input",
                           "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&recurrent_layer>());
}

}  // namespace torch_remote::client::kernels
