#include "redirect/call_with_device.h"

#include "redirect/arguments.h"
#include "redirect/device_keyword.h"
#include "redirect/ref.h"

namespace torch_remote::redirect {
namespace {

// Does something while a Python exception is set, which stays set. Returns null.
template <typename Action>
PyObject* fail_after(Action action) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  action();
  PyErr_Restore(type, value, trace);
  return nullptr;
}

}  // namespace

PyObject* call_with_device(const Method& method, PyObject* self, PyObject* args, PyObject* kwargs,
                           PyObject* device, PyObject* named) {
  if (named != nullptr && PyDict_GET_SIZE(kwargs) == 1) {
    const DeviceKeyword changed(device);
    return changed.get() == nullptr ? nullptr : method.original(self, args, changed.get());
  }
  const Ref asked = Ref::share(named);
  if (asked && Py_REFCNT(kwargs) == 1 && PyDict_SetItem(kwargs, names().device, device) == 0) {
    PyObject* const result = method.original(self, args, kwargs);
    if (result == nullptr)
      return fail_after([&] { PyDict_SetItem(kwargs, names().device, asked.get()); });
    PyDict_SetItem(kwargs, names().device, asked.get());
    return result;
  }
  const Ref changed = with_keyword(kwargs, names().device, device);
  return changed ? method.original(self, args, changed.get()) : nullptr;
}

}  // namespace torch_remote::redirect
