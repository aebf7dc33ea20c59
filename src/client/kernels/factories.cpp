#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/tril_indices.h>
#include <ATen/ops/triu_indices.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "client/backend/allocator.h"
#include "client/kernels/tensors.h"
#include "client/machines/machines.h"
#include "client/process/current_device.h"

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

// Sets the current device, if one is given, while a factory runs.
class OnDevice {
 public:
  explicit OnDevice(std::optional<at::Device> device) : before_(current_device()) {
    if (!device.has_value() || !device->has_index() || device->index() == before_)
      return;
    Machines::instance().place(device->index());  // raises if the device does not exist
    set_current_device(device->index());
  }

  ~OnDevice() { set_current_device(before_); }

  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const c10::DeviceIndex before_;
};

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
