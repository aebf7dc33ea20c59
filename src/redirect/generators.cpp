#include "redirect/generators.h"

#include <array>
#include <string_view>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include "redirect/callers.h"
#include "redirect/hooks.h"
#include "redirect/joined_state.h"
#include "redirect/policy.h"
#include "redirect/ref.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

Unary original_get_state{METH_NOARGS};
Unary original_set_state;
Unary original_manual_seed;
Unary original_seed{METH_NOARGS};
Unary original_initial_seed{METH_NOARGS};
Unary original_clone_state{METH_NOARGS};
Unary original_set_pickled;
PyGetSetDef* data_attribute = nullptr;
setter original_set_data = nullptr;
PyObject* find_random = nullptr;

const at::Generator& generator_of(PyObject* self) {
  return reinterpret_cast<THPGenerator*>(self)->cdata;
}

// What draws for this generator besides the CPU, whatever the override says. Null if nothing does,
// or with a Python error.
Ref accelerator_of(PyObject* self) {
  const Situation now = situation();
  const bool stands_for_both = now.policy == Policy::kFull &&
                               choose_accelerator(now) != Kind::kCpu && find_random != nullptr &&
                               generator_of(self) == at::detail::getDefaultCPUGenerator();
  if (!stands_for_both || caller_limit() != Policy::kFull)
    return {};
  Ref found = Ref::steal(PyObject_CallNoArgs(find_random));
  return found && found.get() != Py_None ? std::move(found) : Ref();
}

// The same, for calls that mean the device that draws now.
Ref drawing_accelerator(PyObject* self) {
  return situation().is_overridden() ? Ref() : accelerator_of(self);
}

// `result`, after the accelerator was given the same seed.
PyObject* seed_both(PyObject* self, Ref result, PyObject* seed) {
  const Ref accelerator = result ? drawing_accelerator(self) : Ref();
  if (!accelerator)
    return PyErr_Occurred() == nullptr ? result.release() : nullptr;
  const Ref done = Ref::steal(PyObject_CallMethod(accelerator.get(), "manual_seed", "O", seed));
  return done ? result.release() : nullptr;
}

PyObject* manual_seed(PyObject* self, PyObject* seed) {
  HANDLE_TH_ERRORS
  return seed_both(self, Ref::steal(original_manual_seed.call_original(self, seed)), seed);
  END_HANDLE_TH_ERRORS
}

PyObject* seed(PyObject* self, PyObject* /*none*/) {
  HANDLE_TH_ERRORS
  Ref chosen = Ref::steal(original_seed.call_original(self));
  PyObject* const number = chosen.get();
  return seed_both(self, std::move(chosen), number);
  END_HANDLE_TH_ERRORS
}

PyObject* initial_seed(PyObject* self, PyObject* /*none*/) {
  HANDLE_TH_ERRORS
  const Ref accelerator = drawing_accelerator(self);
  if (accelerator)
    return PyObject_CallMethod(accelerator.get(), "initial_seed", nullptr);
  return PyErr_Occurred() == nullptr ? original_initial_seed.call_original(self) : nullptr;
  END_HANDLE_TH_ERRORS
}

PyObject* get_state(PyObject* self, PyObject* /*none*/) {
  HANDLE_TH_ERRORS
  Ref here = Ref::steal(original_get_state.call_original(self));
  const Ref accelerator = here ? drawing_accelerator(self) : Ref();
  if (!accelerator)
    return PyErr_Occurred() == nullptr ? here.release() : nullptr;
  const Ref there = Ref::steal(PyObject_CallMethod(accelerator.get(), "get_rng_state", nullptr));
  if (!there)
    return nullptr;
  StateParts parts = {THPVariable_Unpack(here.get()), THPVariable_Unpack(there.get())};
  return THPVariable_Wrap(at::Tensor(c10::make_intrusive<JoinedState>(std::move(parts))));
  END_HANDLE_TH_ERRORS
}

// A generator is of one device: of the one that draws.
PyObject* clone_state(PyObject* self, PyObject* /*none*/) {
  HANDLE_TH_ERRORS
  const Ref accelerator = drawing_accelerator(self);
  if (accelerator)
    return PyObject_CallMethod(accelerator.get(), "clone_state", nullptr);
  return PyErr_Occurred() == nullptr ? original_clone_state.call_original(self) : nullptr;
  END_HANDLE_TH_ERRORS
}

// A state of the CPU alone is given to the accelerator too, which may not be able to use it:
// TorchDevice._generators then says so.
PyObject* set_both_states(PyObject* self, const StateParts& parts) {
  const Ref here = Ref::steal(THPVariable_Wrap(parts.cpu));
  Ref done = here ? Ref::steal(original_set_state.call_original(self, here.get())) : Ref();
  const Ref accelerator = done ? accelerator_of(self) : Ref();
  const bool is_joined = parts.device.defined();
  if (!accelerator || (!is_joined && situation().is_overridden()))
    return PyErr_Occurred() == nullptr ? done.release() : nullptr;
  const Ref there = is_joined ? Ref::steal(THPVariable_Wrap(parts.device)) : Ref::share(here.get());
  const char* const method = is_joined ? "set_rng_state" : "set_state_of_cpu";
  const Ref set = Ref::steal(PyObject_CallMethod(accelerator.get(), method, "O", there.get()));
  return set ? done.release() : nullptr;
}

PyObject* set_state(PyObject* self, PyObject* state) {
  HANDLE_TH_ERRORS
  const Ref host = on_host(state);
  if (!host)
    return nullptr;
  if (!generator_of(self).device().is_cpu() || !THPVariable_Check(host.get()))
    return original_set_state.call_original(self, host.get());
  return set_both_states(self, split_state(THPVariable_Unpack(host.get())));
  END_HANDLE_TH_ERRORS
}

// For pickles and copy.deepcopy(). `pickled` is (seed, offset, state); only the CPU's generator has
// no offset. Its pickle names torch.device("cpu"), which may be redirected when it is loaded: then
// `self` is of the accelerator, as the state's tensor may be.
PyObject* set_pickled(PyObject* self, PyObject* pickled) {
  HANDLE_TH_ERRORS
  if (!PyTuple_Check(pickled) || PyTuple_GET_SIZE(pickled) != 3)
    return original_set_pickled.call_original(self, pickled);
  PyObject* const offset = PyTuple_GET_ITEM(pickled, 1);
  const Ref host = on_host(PyTuple_GET_ITEM(pickled, 2));
  if (!host)
    return nullptr;
  at::Generator& own = reinterpret_cast<THPGenerator*>(self)->cdata;
  const bool is_shared = own.getIntrusivePtr().use_count() > 1;  // a default generator
  if (offset == Py_None && !own.device().is_cpu() && !is_shared)
    own = at::detail::createCPUGenerator();
  const Ref changed = Ref::steal(PyTuple_Pack(3, PyTuple_GET_ITEM(pickled, 0), offset, host.get()));
  return changed ? original_set_pickled.call_original(self, changed.get()) : nullptr;
  END_HANDLE_TH_ERRORS
}

// Torch copies the fields of `value`, which may be a state whose bytes are not there yet.
int set_data(PyObject* self, PyObject* value, void* closure) {
  HANDLE_TH_ERRORS
  if (value != nullptr && THPVariable_Check(value))
    THPVariable_Unpack(value).has_storage();  // a state gets its bytes
  return original_set_data(self, value, closure);
  END_HANDLE_TH_ERRORS_RET(-1)
}

struct HookedMethod {
  std::string_view method;
  Unary* original;
  PyCFunction instead;
};

const std::array<HookedMethod, 7>& hooked_methods() {
  static const std::array<HookedMethod, 7> all = {
      {{"get_state", &original_get_state, get_state},
       {"set_state", &original_set_state, set_state},
       {"manual_seed", &original_manual_seed, manual_seed},
       {"seed", &original_seed, seed},
       {"initial_seed", &original_initial_seed, initial_seed},
       {"clone_state", &original_clone_state, clone_state},
       {"__setstate__", &original_set_pickled, set_pickled}}};
  return all;
}

}  // namespace

bool hook_generator(PyObject* descriptor, const char* method) {
  for (const HookedMethod& one : hooked_methods()) {
    if (one.method == method)
      return one.original->hook(descriptor, one.instead);
  }
  PyErr_Format(PyExc_ValueError, "%s is no method that is hooked", method);
  return false;
}

bool hook_data(PyObject* descriptor) {
  if (Py_TYPE(descriptor) != &PyGetSetDescr_Type) {
    PyErr_Format(PyExc_TypeError, "%R is no attribute of a type", descriptor);
    return false;
  }
  if (data_attribute != nullptr)
    return true;
  data_attribute = reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset;
  original_set_data = std::exchange(data_attribute->set, set_data);
  return true;
}

void unhook_generators() {
  if (data_attribute != nullptr)
    std::exchange(data_attribute, nullptr)->set = original_set_data;
  for (const HookedMethod& one : hooked_methods())
    one.original->unhook();
}

void set_random(PyObject* function) {
  Ref::steal(std::exchange(find_random, Ref::share(function).release()));
}

}  // namespace torch_remote::redirect
