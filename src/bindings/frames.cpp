#include "bindings/frames.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/process/lines.h"
#include "redirect/frames.h"

namespace torch_remote::bindings {
namespace {

// Note [Frames without the GIL]
//
// PyTorch releases the GIL before it calls an operator, and taking it would cost more than the
// call. But only this thread changes its chain of frames, and while it is in a frame, that frame's
// code object lives and does not change. So code, names and line tables can be read without
// touching a reference count (redirect/frames.h). For a version of Python that is not known there
// no lines are noted.

using frames::Frame;

std::vector<std::string>& library_folders() {
  static auto* const folders = new std::vector<std::string>;
  return *folders;
}

void append_utf8(std::string& text, Py_UCS4 letter) {
  const auto tail = [&](int shift) {
    text.push_back(static_cast<char>(0x80 | (letter >> shift & 0x3F)));
  };
  if (letter < 0x80)
    return text.push_back(static_cast<char>(letter));
  if (letter < 0x800) {
    text.push_back(static_cast<char>(0xC0 | letter >> 6));
    return tail(0);
  }
  if (letter < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | letter >> 12));
    tail(6);
    return tail(0);
  }
  text.push_back(static_cast<char>(0xF0 | letter >> 18));
  tail(12);
  tail(6);
  tail(0);
}

// Not PyUnicode_AsUTF8: it caches its result in the string, which needs the GIL.
std::string text_of(PyObject* string) {
  std::string text;
  const auto kind = PyUnicode_KIND(string);
  const void* const data = PyUnicode_DATA(string);
  for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(string); ++i)
    append_utf8(text, PyUnicode_READ(kind, data, i));
  return text;
}

enum class Owner : uint8_t {
  kUser,
  kMadeCode,  // of the user, compiled from a string: another may get its address
  kLibrary,
  kEngine,  // runs a backward: the frames below it made no call
};

Owner owner_of(const PyCodeObject& code) {
  const std::string file = text_of(code.co_filename);
  if (file.starts_with("<frozen ") ||
      file.starts_with("<eval_with_key>"))  // "<eval_with_key>" is code of torch.fx
    return Owner::kLibrary;
  if (file.starts_with('<'))
    return Owner::kMadeCode;
  for (const std::string& folder : library_folders())
    if (file.starts_with(folder))
      return text_of(code.co_name) == "_engine_run_backward" ? Owner::kEngine : Owner::kLibrary;
  return Owner::kUser;
}

PyObject* qualified_name(const PyCodeObject& code) {
#if PY_VERSION_HEX >= 0x030B0000
  return code.co_qualname;
#else
  return code.co_name;
#endif
}

client::LineId intern(const PyCodeObject& code, int offset, PyObject* name) {
  const int number =
      PyCode_Addr2Line(const_cast<PyCodeObject*>(&code), offset);  // NOLINT: reads only
  return client::intern_line({text_of(code.co_filename), number, text_of(name)});
}

// Code that this thread has run. A new code object at the same address has another line table.
struct KnownCode {
  const PyCodeObject* code = nullptr;
  const PyObject* table = nullptr;
  Owner owner = Owner::kUser;
};

struct KnownLine {
  const PyCodeObject* code = nullptr;
  const PyObject* table = nullptr;
  int offset = -1;
  client::LineId line = 0;
};

using KnownLines = std::array<KnownLine, 512>;

// How often note_cell() was called. The code of a cell that has run is freed, and that of the next
// cell, with its line table, may get the same addresses.
std::atomic<uint64_t>& cells_noted() {
  static std::atomic<uint64_t> count{0};
  return count;
}

struct Known {
  uint64_t cells = 0;
  std::array<KnownCode, 512> codes;
  KnownLines lines;         // with qualified names, for errors
  KnownLines plain_frames;  // with plain names, as in PyTorch's stacks
};

const PyObject* table_of(const PyCodeObject& code) {
#if PY_VERSION_HEX >= 0x030A0000
  return code.co_linetable;
#endif
}

size_t bucket_of(const void* code, size_t more) {
  return (reinterpret_cast<uintptr_t>(code) + more) * 0x9E3779B97F4A7C15 >> 55;  // nine bits
}

Known& known() {
  thread_local Known cache;
  const uint64_t cells = cells_noted().load(std::memory_order_relaxed);
  if (cache.cells != cells) {
    cache = {};
    cache.cells = cells;
  }
  return cache;
}

Owner known_owner(const PyCodeObject& code) {
  KnownCode& kept = known().codes[bucket_of(&code, 0)];
  if (kept.code != &code || kept.table != table_of(code))
    kept = {&code, table_of(code), owner_of(code)};
  return kept.owner;
}

client::LineId known_line(KnownLines& lines, const PyCodeObject& code, int offset, PyObject* name) {
  KnownLine& kept = lines[bucket_of(&code, static_cast<size_t>(offset))];
  if (kept.code != &code || kept.offset != offset || kept.table != table_of(code))
    kept = {&code, table_of(code), offset, intern(code, offset, name)};
  return kept.line;
}

}  // namespace

void set_library_folders(const std::vector<std::string>& folders) {
  library_folders() = folders;
}

void note_cell(const std::string& file, int cell) {
  client::note_cell(file, cell);
  cells_noted().fetch_add(1, std::memory_order_relaxed);
}

client::LineId find_line() {
  const PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr)
    return 0;
  for (const Frame* frame = frames::top_frame(*thread); frame != nullptr;
       frame = frames::caller_of(*frame)) {
    const PyCodeObject* const code = frames::code_of(*frame);
    if (code == nullptr)
      continue;
    const Owner owner = known_owner(*code);
    if (owner == Owner::kLibrary)
      continue;
    if (owner == Owner::kEngine)
      return 0;
    const int offset = frames::offset_in(*frame);
    PyObject* const name = qualified_name(*code);
    return owner == Owner::kUser ? known_line(known().lines, *code, offset, name)
                                 : intern(*code, offset, name);
  }
  return 0;
}

void find_stack(std::vector<client::LineId>& lines) {
  const PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr)
    return;
  for (const Frame* frame = frames::top_frame(*thread); frame != nullptr;
       frame = frames::caller_of(*frame)) {
    const PyCodeObject* const code = frames::code_of(*frame);
    if (code == nullptr)
      continue;
    const int offset = frames::offset_in(*frame);
    const client::LineId line =
        known_owner(*code) == Owner::kMadeCode
            ? intern(*code, offset, code->co_name)
            : known_line(known().plain_frames, *code, offset, code->co_name);
    if (line != 0)
      lines.push_back(line);
  }
}

}  // namespace torch_remote::bindings
