#include "redirect/state.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include <c10/core/DeviceType.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>

#include "redirect/ref.h"

namespace torch_remote::redirect {
namespace {

constexpr size_t kTypes = c10::COMPILE_TIME_MAX_DEVICE_TYPES;
constexpr size_t kIndices = 129;  // none, then 0 to 127

std::atomic<Situation>& current() {
  static std::atomic<Situation> value;
  return value;
}

bool toggled = false;  // needs the GIL
int scopes = 0;        // needs the GIL
std::atomic<c10::DeviceType> name_read = c10::DeviceType::CPU;
PyObject* recount_function = nullptr;  // needs the GIL

void update_override() {
  Situation changed = situation();
  changed.override_by =
      static_cast<uint8_t>((toggled ? kByToggle : 0) | (scopes > 0 ? kByScope : 0));
  current().store(changed);
}

}  // namespace

Situation situation() {
  return current().load(std::memory_order_relaxed);
}

void set_situation(const Situation& changed) {
  current().store(changed);
  update_override();
}

void set_toggled(bool on) {
  toggled = on;
  update_override();
}

void change_scopes(int by) {
  scopes += by;
  update_override();
}

c10::DeviceType reads_as() {
  return name_read.load(std::memory_order_relaxed);
}

void set_reads_as(c10::DeviceType type) {
  name_read = type;
}

c10::DeviceType accelerator_type() {
  return type_of(choose_accelerator(situation()));
}

Kind kind_of(c10::DeviceType type) {
  switch (type) {
    case c10::DeviceType::CPU:
      return Kind::kCpu;
    case c10::DeviceType::CUDA:
      return Kind::kCuda;
    case c10::DeviceType::MPS:
      return Kind::kMps;
    case c10::DeviceType::PrivateUse1:
      return Kind::kRemote;
    default:
      return Kind::kOther;
  }
}

c10::DeviceType type_of(Kind kind) {
  switch (kind) {
    case Kind::kCuda:
      return c10::DeviceType::CUDA;
    case Kind::kMps:
      return c10::DeviceType::MPS;
    case Kind::kRemote:
      return c10::DeviceType::PrivateUse1;
    default:
      return c10::DeviceType::CPU;
  }
}

c10::Device device_of(const Decision& decision) {
  const c10::DeviceType type = type_of(decision.kind);
  if (decision.index != kCurrent)
    return {type, static_cast<c10::DeviceIndex>(decision.index)};
  return c10::impl::VirtualGuardImpl(type).getDevice();
}

PyObject* object_of(c10::Device device) {
  static std::array<std::array<PyObject*, kIndices>, kTypes> objects{};
  const auto type = static_cast<size_t>(device.type());
  const auto index = static_cast<size_t>(device.index() + 1);
  PyObject*& object = objects.at(type).at(index);
  if (object == nullptr)
    object = THPDevice_New(device);
  return object;
}

void set_recount(PyObject* function) {
  Ref::steal(std::exchange(recount_function, Ref::share(function).release()));
}

void recount() {
  if (recount_function == nullptr)
    return;
  const Ref done = Ref::steal(PyObject_CallNoArgs(recount_function));
  if (!done)
    PyErr_WriteUnraisable(recount_function);
}

}  // namespace torch_remote::redirect
