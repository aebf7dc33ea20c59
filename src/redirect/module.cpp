// TorchDevice._C: what python/TorchDevice calls. Plain C API, so that it needs no pybind11.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <c10/core/DeviceType.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/version.h>

#include "redirect/callers.h"
#include "redirect/errors.h"
#include "redirect/generators.h"
#include "redirect/host_allocator.h"
#include "redirect/methods.h"
#include "redirect/policy.h"
#include "redirect/redirect.h"
#include "redirect/register.h"
#include "redirect/sites.h"
#include "redirect/state.h"
#include "redirect/tensor_types.h"
#include "redirect/types.h"

namespace torch_remote::redirect {
namespace {

Kind kind_named(std::string_view name) {
  if (name == "cuda")
    return Kind::kCuda;
  if (name == "mps")
    return Kind::kMps;
  return name == "remote" ? Kind::kRemote : Kind::kOther;
}

PyObject* none() {
  Py_RETURN_NONE;
}

// set_situation(cuda, mps, remote, policy, order): counts, 0 to 2, names.
PyObject* py_set_situation(PyObject* /*self*/, PyObject* args) {
  int cuda = 0;
  int mps = 0;
  int remote = 0;
  int policy = 0;
  const char* first = nullptr;
  const char* second = nullptr;
  const char* third = nullptr;
  if (PyArg_ParseTuple(args, "ipii(sss)", &cuda, &mps, &remote, &policy, &first, &second, &third) ==
      0)
    return nullptr;
  if (policy < 0 || policy > 2) {
    PyErr_SetString(PyExc_ValueError, "a policy is 0 (off), 1 (foreign) or 2 (full)");
    return nullptr;
  }
  // A default type that the program has set outlives a new count of the devices.
  const Policy before = situation().policy;
  constexpr std::array<Policy, 3> kPolicies = {Policy::kOff, Policy::kForeign, Policy::kFull};
  Situation changed;
  changed.policy = kPolicies[static_cast<size_t>(policy)];
  if (changed.policy == Policy::kForeign && before == Policy::kForeignDefault)
    changed.policy = before;
  changed.cuda = static_cast<uint8_t>(std::clamp(cuda, 0, 127));
  changed.mps = mps != 0;
  changed.remote = static_cast<uint8_t>(std::clamp(remote, 0, 127));
  changed.order = {kind_named(first), kind_named(second), kind_named(third)};
  set_situation(changed);
  return none();
}

PyObject* py_accelerator(PyObject* /*self*/, PyObject* /*args*/) {
  return PyUnicode_FromString(to_text(choose_accelerator(situation())));
}

// decide(device) -> (device used or None, reason), for the user's own calls; changes nothing.
PyObject* py_decide(PyObject* /*self*/, PyObject* device) {
  HANDLE_TH_ERRORS
  const Decision decision = decide(read_request(device), situation());
  if (!decision.is_redirected())
    return Py_BuildValue("(Os)", Py_None, to_text(decision.reason));
  return Py_BuildValue("(Os)", object_of(device_of(decision)), to_text(decision.reason));
  END_HANDLE_TH_ERRORS
}

PyObject* py_is_overridden(PyObject* /*self*/, PyObject* /*args*/) {
  return PyBool_FromLong(situation().is_overridden() ? 1 : 0);
}

PyObject* py_set_toggled(PyObject* /*self*/, PyObject* on) {
  set_toggled(on == Py_True);
  return none();
}

PyObject* py_change_scopes(PyObject* /*self*/, PyObject* by) {
  change_scopes(static_cast<int>(PyLong_AsLong(by)));
  return PyErr_Occurred() == nullptr ? none() : nullptr;
}

// set_reads_as(name): "cuda", "mps", or "" for what devices are.
PyObject* py_set_reads_as(PyObject* /*self*/, PyObject* name) {
  const char* const text = PyUnicode_AsUTF8(name);
  if (text == nullptr)
    return nullptr;
  set_reads_as(type_of(kind_named(text)));
  return none();
}

PyObject* py_set_callers(PyObject* /*self*/, PyObject* table) {
  return set_callers(table) ? none() : nullptr;
}

PyObject* py_set_library_folders(PyObject* /*self*/, PyObject* folders) {
  return set_library_folders(folders) ? none() : nullptr;
}

// set_log(mode, function): mode 0 quiet, 1 new call sites, 2 every call.
PyObject* py_set_log(PyObject* /*self*/, PyObject* args) {
  int mode = 0;
  PyObject* function = nullptr;
  if (PyArg_ParseTuple(args, "iO", &mode, &function) == 0)
    return nullptr;
  set_log(static_cast<Log>(std::clamp(mode, 0, 2)), function);
  return none();
}

PyObject* py_set_recount(PyObject* /*self*/, PyObject* function) {
  set_recount(function);
  return none();
}

PyObject* py_set_error_handler(PyObject* /*self*/, PyObject* function) {
  set_error_handler(function);
  return none();
}

// set_worker_check(function, is_child_process)
PyObject* py_set_worker_check(PyObject* /*self*/, PyObject* args) {
  PyObject* function = nullptr;
  int is_child = 0;
  if (PyArg_ParseTuple(args, "Op", &function, &is_child) == 0)
    return nullptr;
  set_worker_check(function);
  if (is_child != 0)
    mark_child_process();
  return none();
}

PyObject* py_hook_method(PyObject* /*self*/, PyObject* args) {
  PyObject* function = nullptr;
  const char* kind = nullptr;
  const char* api = nullptr;
  if (PyArg_ParseTuple(args, "Oss", &function, &kind, &api) == 0)
    return nullptr;
  return hook_method(function, kind, api) ? none() : nullptr;
}

PyObject* py_hook_type(PyObject* /*self*/, PyObject* args) {
  PyObject* type = nullptr;
  const char* kind = nullptr;
  if (PyArg_ParseTuple(args, "Os", &type, &kind) == 0)
    return nullptr;
  return hook_type(type, kind) ? none() : nullptr;
}

PyObject* py_hook_getter(PyObject* /*self*/, PyObject* args) {
  PyObject* descriptor = nullptr;
  const char* kind = nullptr;
  if (PyArg_ParseTuple(args, "Os", &descriptor, &kind) == 0)
    return nullptr;
  return hook_getter(descriptor, kind) ? none() : nullptr;
}

PyObject* py_hook_instance_check(PyObject* /*self*/, PyObject* descriptor) {
  return hook_instance_check(descriptor) ? none() : nullptr;
}

PyObject* py_hook_default_type(PyObject* /*self*/, PyObject* function) {
  return hook_default_type(function) ? none() : nullptr;
}

PyObject* py_hook_data(PyObject* /*self*/, PyObject* descriptor) {
  return hook_data(descriptor) ? none() : nullptr;
}

PyObject* py_hook_generator(PyObject* /*self*/, PyObject* args) {
  PyObject* descriptor = nullptr;
  const char* method = nullptr;
  if (PyArg_ParseTuple(args, "Os", &descriptor, &method) == 0)
    return nullptr;
  return hook_generator(descriptor, method) ? none() : nullptr;
}

PyObject* py_set_random(PyObject* /*self*/, PyObject* function) {
  set_random(function);
  return none();
}

// install_kernels(for_cuda, for_mps)
PyObject* py_install_kernels(PyObject* /*self*/, PyObject* args) {
  HANDLE_TH_ERRORS
  int for_cuda = 0;
  int for_mps = 0;
  if (PyArg_ParseTuple(args, "pp", &for_cuda, &for_mps) == 0)
    return nullptr;
  install_kernels(for_cuda != 0, for_mps != 0);
  install_script();
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* py_unhook(PyObject* /*self*/, PyObject* /*args*/) {
  HANDLE_TH_ERRORS
  unhook_methods();
  unhook_types();
  unhook_tensor_types();
  unhook_generators();
  remove_kernels();
  forget_large_tensors();
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* py_install_host_allocator(PyObject* /*self*/, PyObject* /*args*/) {
  HANDLE_TH_ERRORS
  install_host_allocator();
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* py_remove_host_allocator(PyObject* /*self*/, PyObject* /*args*/) {
  HANDLE_TH_ERRORS
  remove_host_allocator();
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* py_set_host_limit(PyObject* /*self*/, PyObject* bytes) {
  const unsigned long long allowed = PyLong_AsUnsignedLongLong(bytes);
  if (PyErr_Occurred() != nullptr)
    return nullptr;
  set_host_limit(allowed);
  return none();
}

PyObject* py_maker_of(PyObject* /*self*/, PyObject* tensor) {
  return maker_of(tensor);
}

// note_redirect(api, asked): counts a call that Python has redirected, as the policy says now.
PyObject* py_note_redirect(PyObject* /*self*/, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* api = nullptr;
  PyObject* asked = nullptr;
  if (PyArg_ParseTuple(args, "sO", &api, &asked) == 0)
    return nullptr;
  const Request request = read_request(asked);
  const Decision decision = decide(request, situation());
  if (decision.is_redirected())
    note(intern(api), request, device_of(decision), decision.reason);
  return none();
  END_HANDLE_TH_ERRORS
}

PyObject* py_sites(PyObject* /*self*/, PyObject* /*args*/) {
  return list_sites();
}

PyObject* py_count_left_out(PyObject* /*self*/, PyObject* /*args*/) {
  return PyLong_FromUnsignedLongLong(count_left_out());
}

PyMethodDef functions[] = {
    {"set_situation", py_set_situation, METH_VARARGS, nullptr},
    {"accelerator", py_accelerator, METH_NOARGS, nullptr},
    {"decide", py_decide, METH_O, nullptr},
    {"is_overridden", py_is_overridden, METH_NOARGS, nullptr},
    {"set_toggled", py_set_toggled, METH_O, nullptr},
    {"change_scopes", py_change_scopes, METH_O, nullptr},
    {"set_reads_as", py_set_reads_as, METH_O, nullptr},
    {"set_callers", py_set_callers, METH_O, nullptr},
    {"set_library_folders", py_set_library_folders, METH_O, nullptr},
    {"set_log", py_set_log, METH_VARARGS, nullptr},
    {"set_recount", py_set_recount, METH_O, nullptr},
    {"set_error_handler", py_set_error_handler, METH_O, nullptr},
    {"set_worker_check", py_set_worker_check, METH_VARARGS, nullptr},
    {"hook_method", py_hook_method, METH_VARARGS, nullptr},
    {"hook_type", py_hook_type, METH_VARARGS, nullptr},
    {"hook_getter", py_hook_getter, METH_VARARGS, nullptr},
    {"hook_instance_check", py_hook_instance_check, METH_O, nullptr},
    {"hook_default_type", py_hook_default_type, METH_O, nullptr},
    {"hook_data", py_hook_data, METH_O, nullptr},
    {"hook_generator", py_hook_generator, METH_VARARGS, nullptr},
    {"set_random", py_set_random, METH_O, nullptr},
    {"install_kernels", py_install_kernels, METH_VARARGS, nullptr},
    {"unhook", py_unhook, METH_NOARGS, nullptr},
    {"install_host_allocator", py_install_host_allocator, METH_NOARGS, nullptr},
    {"remove_host_allocator", py_remove_host_allocator, METH_NOARGS, nullptr},
    {"set_host_limit", py_set_host_limit, METH_O, nullptr},
    {"maker_of", py_maker_of, METH_O, nullptr},
    {"note_redirect", py_note_redirect, METH_VARARGS, nullptr},
    {"sites", py_sites, METH_NOARGS, nullptr},
    {"count_left_out", py_count_left_out, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_C", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace torch_remote::redirect

PyMODINIT_FUNC PyInit__C() {
  PyObject* const module = PyModule_Create(&torch_remote::redirect::definition);
  if (module == nullptr)
    return nullptr;
  if (PyModule_AddStringConstant(module, "BUILT_FOR_TORCH", TORCH_VERSION) != 0)
    return nullptr;
  return module;
}
