#pragma once

#include <utility>

#include <torch/csrc/python_headers.h>

namespace torch_remote::redirect {

// Owns one reference to a Python object. Needs the GIL.
class Ref {
 public:
  Ref() = default;

  ~Ref() { Py_XDECREF(object_); }

  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}

  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;

  static Ref steal(PyObject* object) { return Ref(object); }

  static Ref share(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }

  PyObject* get() const { return object_; }

  PyObject* release() { return std::exchange(object_, nullptr); }

  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Ref(PyObject* object) : object_(object) {}

  PyObject* object_ = nullptr;
};

}  // namespace torch_remote::redirect
