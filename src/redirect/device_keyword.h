#pragma once

#include <utility>

#include <torch/csrc/python_headers.h>

#include "redirect/arguments.h"
#include "redirect/ref.h"

namespace torch_remote::redirect {

// {"device": device}, the commonest keywords of all, which is kept for the next call. Torch only
// reads it; a __torch_function__ may keep or change it, and then it is not used again. The device
// is one of object_of(). Needs the GIL.
class DeviceKeyword {
 public:
  explicit DeviceKeyword(PyObject* device) {
    if (kept_for != device) {
      Ref::steal(std::exchange(kept, with_keyword(nullptr, names().device, device).release()));
      kept_for = device;
    }
    dict_ = Ref::share(kept);
    references_ = dict_ ? Py_REFCNT(kept) : 0;
  }

  ~DeviceKeyword() {
    PyObject* const dict = dict_.get();
    if (dict == nullptr || dict != kept)
      return;
    const bool is_same = Py_REFCNT(dict) == references_ && PyDict_GET_SIZE(dict) == 1 &&
                         PyDict_GetItemWithError(dict, names().device) == kept_for;
    if (!is_same) {
      Ref::steal(std::exchange(kept, nullptr));
      kept_for = nullptr;
    }
  }

  DeviceKeyword(const DeviceKeyword&) = delete;
  DeviceKeyword& operator=(const DeviceKeyword&) = delete;

  PyObject* get() const { return dict_.get(); }

 private:
  static inline PyObject* kept = nullptr;      // needs the GIL
  static inline PyObject* kept_for = nullptr;  // borrowed: devices of object_of() live for ever

  Ref dict_;
  Py_ssize_t references_ = 0;
};

}  // namespace torch_remote::redirect
