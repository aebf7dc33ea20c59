// The device of a call, and what is refused.
#include <algorithm>

#include "client/capture/advice.h"
#include "client/capture/capture.h"

namespace torch_remote::client {
namespace {

bool is_remote(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() && value.toTensor().device().is_privateuseone();
  if (!value.isList())
    return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), is_remote);
}

}  // namespace

Advice& mixing_advice() {
  static auto* const advice = new Advice;
  return *advice;
}

void Capture::add_device(c10::Device device) {
  if (device.is_cpu())
    return wire::encode_kind(key_, wire::ValueKind::kCpuDevice);
  TORCH_CHECK(device.is_privateuseone(), "a call on a remote device cannot name ", device);
  wire::encode_kind(key_, wire::ValueKind::kDevice);
  if (device.has_index())
    use_device(device.index());
}

void Capture::use_other_device(c10::DeviceIndex index) {
  if (device_ < 0)
    device_ = index;
  else if (!spans_devices_)
    refuse_mix(c10::Device(c10::kPrivateUse1, device_), c10::Device(c10::kPrivateUse1, index));
}

void Capture::refuse_mix(c10::Device a, c10::Device b) const {
  check_generator_has_tensor(b.type());
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ", a,
              " and ", b, "! (when checking arguments of ", operator_name_, ")",
              a.is_cpu() || b.is_cpu() ? mixing_advice().get() : std::string());
}

void Capture::check_generator_has_tensor(c10::DeviceType elsewhere) const {
  bool has_generator = false;
  for (const c10::IValue& value : arguments_) {
    if (value.isGenerator())
      has_generator = value.toGenerator().device().is_privateuseone();
    if (is_remote(value))
      return;
  }
  TORCH_CHECK(!has_generator, "Expected a '", c10::DeviceTypeName(elsewhere, true),
              "' device type for generator but found '",
              c10::DeviceTypeName(c10::kPrivateUse1, true), "'");
}

void Capture::refuse_limit(const char* what, uint64_t value, uint64_t limit) const {
  TORCH_CHECK(false, operator_name_, ": ", value, " ", what, " are more than the ", limit,
              " that one remote call takes");
}

}  // namespace torch_remote::client
