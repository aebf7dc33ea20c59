#include "client/kernels/parts.h"

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

}  // namespace torch_remote::client::kernels
