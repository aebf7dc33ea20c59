#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tril_indices.h>
#include <ATen/ops/triu_indices.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "client/backend/allocator.h"
#include "client/backend/guard.h"
#include "client/dispatch.h"
#include "client/kernels/tensors.h"
#include "client/machines.h"

namespace torch_remote::client::kernels {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::kStrided, "layout ",
                              c10::layout_or_default(layout),
                              " is not supported on a remote device; use .cpu() first");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
}

at::Tensor filled(at::Tensor made) {
  if (C10_UNLIKELY(fills_new_memory()))
    at::native::fill_empty_deterministic_(made);
  return made;
}

// Factories run on the device asked for, or on the current one.
class OnDevice {
 public:
  explicit OnDevice(std::optional<at::Device> device) : before_(current_device()) {
    if (!device.has_value() || !device->has_index() || device->index() == before_)
      return;
    Machines::instance().place(device->index());  // refuses one that is not there
    set_current_device(device->index());
  }

  ~OnDevice() { set_current_device(before_); }

  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const c10::DeviceIndex before_;
};

bool is_that_of(std::optional<at::Device> device, const at::Tensor& tensor) {
  if (!device.has_value())
    return true;
  if (!device->is_privateuseone())
    return false;
  return tensor.device().index() == (device->has_index() ? device->index() : current_device());
}

}  // namespace

bool fills_new_memory() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

at::Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<at::MemoryFormat> format) {
  check(layout, pin_memory);
  OnDevice on(device);
  return filled(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size),
                                          &RemoteAllocator::instance(), kKeys,
                                          c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check(layout, pin_memory);
  OnDevice on(device);
  return filled(at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &RemoteAllocator::instance(),
      kKeys, c10::dtype_or_default(dtype)));
}

at::Tensor efficient_zero_tensor(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                                 std::optional<bool> pin_memory) {
  check(layout, pin_memory);
  OnDevice on(device);
  at::native::ZeroTensorAllocator allocator(at::Device(at::kPrivateUse1, current_device()));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                   kKeys.add(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

void ones_like(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, operation.schema().arguments().size());
  const at::Tensor self = arguments[0].toTensor();
  const auto dtype = arguments[1].toOptional<at::ScalarType>();
  const auto layout = arguments[2].toOptional<at::Layout>();
  const auto device = arguments[3].toOptional<at::Device>();
  const auto pin_memory = arguments[4].toOptional<bool>();
  const auto format = arguments[5].toOptional<at::MemoryFormat>();
  const bool has_values = self.is_non_overlapping_and_dense() && !self.is_conj() &&
                          !self.is_neg() && !self._is_zerotensor();
  if (has_values && c10::layout_or_default(layout) == at::kStrided && is_that_of(device, self) &&
      !pin_memory.value_or(false))
    return dispatch(operation, stack);
  at::Tensor made = at::empty_like(self, dtype, layout, device, pin_memory, format).fill_(1);
  torch::jit::drop(*stack, operation.schema().arguments().size());
  torch::jit::push(*stack, std::move(made));
}

// The indices are few and known here: made on the host, sent as bytes.
at::Tensor tril_indices(int64_t row, int64_t column, int64_t offset,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                        std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check(layout, pin_memory);
  return at::tril_indices(row, column, offset,
                          at::TensorOptions().dtype(dtype.value_or(at::kLong)).device(at::kCPU))
      .to(device.value_or(at::Device(at::kPrivateUse1, current_device())));
}

at::Tensor triu_indices(int64_t row, int64_t column, int64_t offset,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                        std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check(layout, pin_memory);
  return at::triu_indices(row, column, offset,
                          at::TensorOptions().dtype(dtype.value_or(at::kLong)).device(at::kCPU))
      .to(device.value_or(at::Device(at::kPrivateUse1, current_device())));
}

}  // namespace torch_remote::client::kernels
