#include "redirect/frames.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#define Py_BUILD_CORE 1  // NOLINT: how CPython gives access to its internal headers
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <cstddef>

namespace torch_remote::redirect {

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
TopFrame top_frame() {
  const PyThreadState* const thread = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030D0000
  const _PyInterpreterFrame* frame = thread->cframe->current_frame;
#else
  const _PyInterpreterFrame* frame = thread->current_frame;
#endif
#if PY_VERSION_HEX >= 0x030C0000
  // Frames that the interpreter inserts between its own C calls have no code of the program.
  while (frame != nullptr && frame->owner == FRAME_OWNED_BY_CSTACK)
    frame = frame->previous;
#endif
  if (frame == nullptr)
    return {};
#if PY_VERSION_HEX < 0x030D0000
  PyCodeObject* const code = frame->f_code;
  const auto* const instruction = reinterpret_cast<const std::byte*>(frame->prev_instr);
#else
  auto* const code = reinterpret_cast<PyCodeObject*>(frame->f_executable);
  const auto* const instruction = reinterpret_cast<const std::byte*>(frame->instr_ptr);
#endif
  const auto* const begin = reinterpret_cast<const std::byte*>(code->co_code_adaptive);
  return {code, frame->f_globals, static_cast<int>(instruction - begin)};
}
#else
TopFrame top_frame() {
  return {};
}
#endif

}  // namespace torch_remote::redirect
