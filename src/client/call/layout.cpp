#include "client/call/layout.h"

namespace torch_remote::client {

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

}  // namespace torch_remote::client
