#include "client/kernels/boxed.h"

#include <optional>

#include <c10/core/DeviceGuard.h>

namespace torch_remote::client::kernels {
namespace {

std::optional<c10::Device> remote_device(const c10::IValue& value) {
  if (value.isDevice() && value.toDevice().is_privateuseone())
    return value.toDevice();
  if (value.isTensor() && value.toTensor().defined() &&
      value.toTensor().device().is_privateuseone())
    return value.toTensor().device();
  return std::nullopt;
}

// The device on which the kernel makes tensors: its `device` argument, or that of a tensor.
std::optional<c10::Device> device_of(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> found;
  for (const c10::IValue& argument : arguments) {
    const auto device = remote_device(argument);
    if (device.has_value() && device->has_index() && (!found || argument.isDevice()))
      found = device;
  }
  return found;
}

}  // namespace

void run_kernel_of(c10::DispatchKey key, const c10::OperatorHandle& operation,
                   torch::jit::Stack* stack) {
  const size_t count = operation.schema().arguments().size();
  const c10::OptionalDeviceGuard guard(device_of(torch::jit::last(*stack, count)));
  operation.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

void refuse_layout(const c10::OperatorHandle& operation, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, operation.operator_name().name,
      ": a remote device holds dense, sparse and nested tensors, not quantized or mkldnn ones; "
      "keep "
      "such a tensor on the CPU (.cpu()), or make it dense (.to_dense(), .dequantize())");
}

void refuse_memory(const c10::OperatorHandle& operation, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, operation.operator_name().name,
      ": PyTorch's code for it reads the memory of tensors in this process, and that of a remote "
      "tensor is on the server; call it with tensors on the CPU (.cpu())");
}

void refuse_nested(const c10::OperatorHandle& operation, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, operation.operator_name().name,
      ": strided nested tensors do not have this operator, on a CPU too; call it on each of "
      "tensor.unbind(), or use layout=torch.jagged, which has more operators");
}

void refuse_remote_device(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
  const size_t count = operation.schema().arguments().size();
  const int index = *operation.schema().argumentIndexWithName("device");
  const c10::IValue& device = torch::jit::peek(*stack, index, count);
  if (device.isDevice() && device.toDevice().is_privateuseone())
    refuse_layout(operation, stack);
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  operation.redispatchBoxed(keys & below, stack);
}

}  // namespace torch_remote::client::kernels
