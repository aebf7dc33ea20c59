#include "redirect/redirect.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <string_view>

#include <c10/core/DeviceType.h>
#include <torch/csrc/Device.h>

#include "redirect/callers.h"
#include "redirect/errors.h"
#include "redirect/frames.h"
#include "redirect/sites.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

Kind kind_of_name(std::string_view name) {
  if (name == "cuda")
    return Kind::kCuda;
  if (name == "cpu")
    return Kind::kCpu;
  if (name == "mps")
    return Kind::kMps;
  if (c10::is_privateuse1_backend_registered() && name == c10::get_privateuse1_backend())
    return Kind::kRemote;
  return Kind::kOther;
}

// "cuda", "cuda:1", "cpu:-1". What torch would not parse is kOther: torch says what is wrong.
Request read_name(std::string_view text) {
  if (text == "cpu")
    return {Kind::kCpu, kNoIndex};
  if (text == "cuda")
    return {Kind::kCuda, kNoIndex};
  const size_t colon = text.find(':');
  const Kind kind = kind_of_name(text.substr(0, colon));
  if (colon == std::string_view::npos || kind == Kind::kOther)
    return {kind, kNoIndex};
  const std::string_view digits = text.substr(colon + 1);
  if (kind == Kind::kCpu && digits == "-1")
    return {Kind::kToggle, -1};
  int index = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, index);
  const bool is_plain = digits.size() == 1 || digits[0] != '0';
  if (error != std::errc() || stop != end || !is_plain || index < 0)
    return {Kind::kOther, kNoIndex};
  return {kind, index};
}

// Where this thread's Python code is. Borrowed: valid until the call returns.
struct TopFrame {
  PyCodeObject* code = nullptr;  // null: unknown
  PyObject* globals = nullptr;
  int offset = 0;  // of the instruction, in bytes
};

// The innermost frame, without making a frame object of it, which takes longer than a lookup.
TopFrame top_frame() {
  const frames::Frame* frame = frames::top_frame(*PyThreadState_Get());
  while (frame != nullptr && frames::code_of(*frame) == nullptr)
    frame = frames::caller_of(*frame);
  if (frame == nullptr)
    return {};
  return {frames::code_of(*frame), frames::globals_of(*frame), frames::offset_in(*frame)};
}

// Note [Recent calls]
//
// Most calls come from a line that has called before. What was decided for it is found by the line
// and by what is in force, without looking at the caller's module or making a frame object.
struct Recent {
  PyCodeObject* code = nullptr;  // the site keeps it alive
  PyObject* globals = nullptr;
  const char* api = nullptr;
  int offset = 0;
  Policy limit = Policy::kFull;
  Request request;
  Situation situation;
  Decision decision;
  c10::Device device = c10::DeviceType::CPU;
  PyObject* object = nullptr;
  Site* site = nullptr;
};

std::array<Recent, 256> recent_calls;

Recent& recent_at(const TopFrame& frame, const char* api) {
  const auto mixed = reinterpret_cast<uintptr_t>(frame.code) + static_cast<uintptr_t>(frame.offset);
  const uintptr_t value = mixed ^ reinterpret_cast<uintptr_t>(api);
  return recent_calls[value * 0x9E3779B97F4A7C15 >> 56];
}

bool equal(const Situation& one, const Situation& other) {
  return std::bit_cast<uint64_t>(one) == std::bit_cast<uint64_t>(other);
}

// Whether it is this very call, with nothing changed since.
bool matches(const Recent& recent, const TopFrame& frame, const Request& request, const char* api,
             Policy limit, const Situation& now) {
  if (recent.code != frame.code || recent.code == nullptr || recent.offset != frame.offset ||
      recent.globals != frame.globals || recent.api != api || recent.limit != limit ||
      recent.request.kind != request.kind || recent.request.index != request.index ||
      !equal(recent.situation, now) || is_child_process())
    return false;  // a worker of a DataLoader inherits what its parent decided
  return recent.decision.index != kCurrent || device_of(recent.decision) == recent.device;
}

// Calls of libraries are not kept: which line of the user's made them differs.
bool is_kept(const TopFrame& frame, const Request& request, const Site* site) {
  return frame.code != nullptr && site != nullptr && request.kind != Kind::kToggle &&
         !is_child_process() && !is_library(frame.code) && !is_generated(frame.code, frame.globals);
}

// Note [One use of cpu:-1]
//
// A module asks for "cpu:-1" once for each of its tensors, and all of these are one use, which
// toggles the override once. One use is one execution of the library's function that the program
// called. Its frame is marked by an object in its f_trace, which is free unless a debugger traces
// it, and which goes with the frame: so the next execution of the same line is another use.
constinit const void* live_mark = nullptr;  // of the last use, while its frame lives; needs the GIL

void forget_mark(PyObject* mark) {
  if (live_mark == mark)
    live_mark = nullptr;
}

// Whether "cpu:-1" has toggled the override already for this use. A use by the program's own code
// always toggles.
bool is_same_use(const TopFrame& frame) {
  if (frame.code == nullptr || !is_library(frame.code))
    return false;
  const Ref called = called_library_frame();
  const Ref found = called ? Ref::steal(PyObject_GetAttrString(called.get(), "f_trace")) : Ref();
  if (found && found.get() == live_mark)
    return true;
  static int marked = 0;  // a capsule needs a pointer
  const Ref mark = Ref::steal(PyCapsule_New(&marked, nullptr, forget_mark));
  if (found && found.get() == Py_None && mark &&
      PyObject_SetAttrString(called.get(), "f_trace", mark.get()) == 0)
    live_mark = mark.get();
  PyErr_Clear();
  return false;
}

}  // namespace

Request read_request(PyObject* device) {
  if (device == nullptr || device == Py_None)
    return {};
  if (THPDevice_Check(device)) {
    const c10::Device value = reinterpret_cast<THPDevice*>(device)->device;
    return {kind_of(value.type()), value.index()};
  }
  if (PyUnicode_Check(device)) {
    Py_ssize_t length = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(device, &length);
    if (text != nullptr)
      return read_name({text, static_cast<size_t>(length)});
    PyErr_Clear();
    return {Kind::kOther, kNoIndex};
  }
  if (PyLong_CheckExact(device)) {
    const long index = PyLong_AsLong(device);
    if (index >= 0 && index <= kMaxIndex)
      return {Kind::kCuda, static_cast<int>(index)};
    PyErr_Clear();
  }
  return {Kind::kOther, kNoIndex};
}

bool may_redirect(const Request& request) {
  return decide(request, situation()).is_redirected();
}

PyObject* redirect(const Request& request, const char* api, Policy limit) {
  const Situation in_force = situation();
  const Kind accelerator = choose_accelerator(in_force);
  if (request.kind == accelerator && !in_force.is_overridden()) [[likely]]
    return nullptr;  // native code pays for no more than this
  Situation now = in_force;
  now.policy = std::min(now.policy, limit);
  const bool is_foreign =
      (request.kind == Kind::kCuda || request.kind == Kind::kMps) && request.kind != accelerator;
  if (!is_foreign && !decide(request, now).is_redirected())
    return nullptr;
  const TopFrame frame = top_frame();
  Recent& recent = recent_at(frame, api);
  if (matches(recent, frame, request, api, limit, in_force)) {
    PyObject* const object = recent.object;  // the log may run other calls, which take the place
    count(*recent.site);
    return object;
  }
  const Policy caller = caller_limit();
  if (caller != Policy::kFull && request.kind == accelerator)
    return nullptr;  // a library that names the accelerator itself means it, whatever the override
  if (request.kind == Kind::kToggle && caller != Policy::kFull)
    return nullptr;  // a library that only looks at the argument must not toggle the override
  now.policy = std::min(now.policy, caller);
  if (request.kind == Kind::kToggle && (is_second_try() || is_same_use(frame)))
    return object_of(device_of(decide_default(now, Reason::kAsAsked)));
  Decision decision = decide(request, now);
  if (decision.reason == Reason::kNoSuchIndex) {
    recount();
    now.remote = situation().remote;
    decision = decide(request, now);
  }
  if (!decision.is_redirected())
    return nullptr;
  if (decision.reason == Reason::kToggledOn || decision.reason == Reason::kToggledOff)
    set_toggled(decision.reason == Reason::kToggledOn);
  const c10::Device device = device_of(decision);
  PyObject* const object = object_of(device);
  Site* const site = note(api, request, device, decision.reason);
  if (is_kept(frame, request, site))
    recent = {frame.code, frame.globals, api,    frame.offset, limit, request,
              in_force,   decision,      device, object,       site};
  return object;
}

}  // namespace torch_remote::redirect
