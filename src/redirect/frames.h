#pragma once

#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#elif PY_VERSION_HEX < 0x030E0000
#define Py_BUILD_CORE 1  // NOLINT: how CPython gives access to its internal headers
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <cstddef>

// CPython's frames, read where they lie: it has no public function that makes no frame object and
// needs no GIL, and its frames differ between versions. For a version that is not known here no
// thread has a frame. Another version is added in this file only.
namespace torch_remote::frames {

#if PY_VERSION_HEX < 0x030B0000
using Frame = PyFrameObject;

inline const Frame* top_frame(const PyThreadState& thread) {
  return thread.frame;
}

inline const Frame* caller_of(const Frame& frame) {
  return frame.f_back;
}

inline PyCodeObject* code_of(const Frame& frame) {
  return frame.f_code;
}

inline int offset_in(const Frame& frame) {
  return frame.f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT));
}

inline PyObject* globals_of(const Frame& frame) {
  return frame.f_globals;
}
#elif PY_VERSION_HEX < 0x030E0000
using Frame = _PyInterpreterFrame;

// The innermost one of this thread; null outside Python.
inline const Frame* top_frame(const PyThreadState& thread) {
#if PY_VERSION_HEX < 0x030D0000
  return thread.cframe->current_frame;
#else
  return thread.current_frame;
#endif
}

inline const Frame* caller_of(const Frame& frame) {
  return frame.previous;
}

// Null for the frames that the interpreter inserts between its own C calls.
inline PyCodeObject* code_of(const Frame& frame) {
#if PY_VERSION_HEX >= 0x030C0000
  if (frame.owner == FRAME_OWNED_BY_CSTACK)
    return nullptr;
#endif
#if PY_VERSION_HEX < 0x030D0000
  return frame.f_code;
#else
  return reinterpret_cast<PyCodeObject*>(frame.f_executable);
#endif
}

// Of the instruction, in bytes, for a frame with code.
inline int offset_in(const Frame& frame) {
#if PY_VERSION_HEX < 0x030D0000
  const auto* const instruction = reinterpret_cast<const std::byte*>(frame.prev_instr);
#else
  const auto* const instruction = reinterpret_cast<const std::byte*>(frame.instr_ptr);
#endif
  const auto* const begin = reinterpret_cast<const std::byte*>(code_of(frame)->co_code_adaptive);
  return static_cast<int>(instruction - begin);
}

inline PyObject* globals_of(const Frame& frame) {
  return frame.f_globals;
}
#else
struct Frame {};

inline const Frame* top_frame(const PyThreadState& /*thread*/) {
  return nullptr;
}

inline const Frame* caller_of(const Frame& /*frame*/) {
  return nullptr;
}

inline PyCodeObject* code_of(const Frame& /*frame*/) {
  return nullptr;
}

inline int offset_in(const Frame& /*frame*/) {
  return 0;
}

inline PyObject* globals_of(const Frame& /*frame*/) {
  return nullptr;
}
#endif

}  // namespace torch_remote::frames
