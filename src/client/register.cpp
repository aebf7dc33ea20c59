// All registrations with PyTorch. The only file with registration macros.
#include "client/register.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "client/backend/allocator.h"
#include "client/backend/generator.h"
#include "client/backend/guard.h"
#include "client/backend/hooks.h"
#include "client/backend/profiler.h"
#include "client/call/dispatch.h"
#include "client/kernels/boxed.h"
#include "client/kernels/composite.h"
#include "client/kernels/nested.h"
#include "client/kernels/table.h"
#include "client/machines/machines.h"
#include "client/memory/pinned.h"
#include "client/memory/storage.h"
#include "client/operators/operator.h"
#include "client/shapes/shapes.h"
#include "marshal/generator_copy.h"
#include "marshal/route.h"
#include "marshal/schemas.h"

namespace torch_remote::client {
namespace {

using c10::DispatchKey;
using marshal::Route;
using torch::CppFunction;

// A library for kernels at one key. Never deleted.
torch::Library& library_of(DispatchKey key, const char* operators = "aten") {
  return *new torch::Library(torch::Library::IMPL, operators, key, __FILE__, __LINE__);
}

// The keys that lead to a composite operator.
constexpr DispatchKey kLeadToComposites[] = {
    DispatchKey::PrivateUse1, DispatchKey::AutogradPrivateUse1, DispatchKey::SparsePrivateUse1,
    DispatchKey::SparseCsrPrivateUse1, DispatchKey::QuantizedPrivateUse1};

// A composite operator that reads memory has no memory to read here. Of any namespace.
void refuse_reading(const c10::OperatorHandle& operation) {
  const std::string& name = operation.schema().name();
  const std::string names(name, 0, name.find("::"));
  const std::string whole = c10::toString(operation.operator_name());
  for (const DispatchKey key : kLeadToComposites)
    library_of(key, names.c_str())
        .impl(whole.c_str(), CppFunction::makeFromBoxedFunction<&kernels::refuse_memory>());
}

// A composite operator that ends in a tensor of another layout is refused at every key that leads
// to it; below BackendSelect only if its `device` is remote, since it may get CPU tensors there.
void refuse(const c10::OperatorHandle& operation, const char* name) {
  static torch::Library& select = library_of(DispatchKey::BackendSelect);
  for (const DispatchKey key : kLeadToComposites)
    library_of(key).impl(name, CppFunction::makeFromBoxedFunction<&kernels::refuse_layout>());
  if (operation.schema().argumentIndexWithName("device").has_value() &&
      !operation.hasKernelForDispatchKey(DispatchKey::BackendSelect))
    select.impl(name, CppFunction::makeFromBoxedFunction<&kernels::refuse_remote_device>());
}

// For sparse tensors, where PyTorch has a kernel for them on the CPU. Its compositions, which are
// for dense tensors, would be taken otherwise.
void register_sparse(const c10::OperatorHandle& operation, const char* name) {
  static torch::Library& coo = library_of(DispatchKey::SparsePrivateUse1);
  static torch::Library& compressed = library_of(DispatchKey::SparseCsrPrivateUse1);
  if (operation.hasKernelForDispatchKey(DispatchKey::SparseCPU))
    kernels::register_coo(coo, operation, name);
  if (operation.hasKernelForDispatchKey(DispatchKey::SparseCsrCPU))
    kernels::register_compressed(compressed, operation, name);
}

void register_operator(const c10::OperatorHandle& operation) {
  static torch::Library& dense = library_of(DispatchKey::PrivateUse1);
  static torch::Library& autograd = library_of(DispatchKey::AutogradPrivateUse1);
  static torch::Library& nested = library_of(DispatchKey::NestedTensorPrivateUse1);
  const Route route = marshal::route_of(operation, marshal::rules_of(operation.operator_name()));
  if (route == Route::kReadsMemory)
    return refuse_reading(operation);
  const std::string name = c10::toString(operation.operator_name());
  if (!marshal::is_refused(route))
    register_sparse(operation, name.c_str());
  if (operation.hasKernelForDispatchKey(DispatchKey::NestedTensorCPU))
    kernels::register_nested(nested, operation, name.c_str());
  const kernels::Kernel kernel = kernels::find_kernel(operation.operator_name());
  if (route == Route::kRefused)
    refuse(operation, name.c_str());
  else if (kernel != nullptr)
    kernel(dense, name.c_str());
  else if (route == Route::kSent &&
           marshal::is_composed(operation))  // else dispatch() is the fallback
    dense.impl(name.c_str(), CppFunction::makeFromBoxedFunction<&dispatch>());
  // The same function at both keys: tensors made in inference mode have no Autograd key.
  if (route == Route::kBranch)
    kernel(autograd, name.c_str());
}

}  // namespace

void register_backend() {
  static bool done = false;
  if (done)
    return;
  done = true;
  use_shape_functions(&shapes::find_shape_function);
  record_lookup.deleter = &delete_record;
  record_lookup.find_slowly = &find_record_slowly;
  record_lookup.generator_name = &generator_name;
  record_lookup.check_session = &check_session;
  register_profiler();
  marshal::define_collectives();
  marshal::define_generator_copy();
  Machines::instance().hooks().attach = &attach_default_generator;
  c10::SetAllocator(c10::kPrivateUse1, &RemoteAllocator::instance());
  at::setHostAllocator(c10::kPrivateUse1, pinned_allocator());
  at::RegisterPrivateUse1HooksInterface(new RemoteHooks);
  for (const DispatchKey key : {DispatchKey::SparsePrivateUse1, DispatchKey::SparseCsrPrivateUse1})
    library_of(key, "_").fallback(CppFunction::makeFromBoxedFunction<&dispatch>());
  library_of(DispatchKey::QuantizedPrivateUse1, "_")
      .fallback(CppFunction::makeFromBoxedFunction<&kernels::refuse_layout>());
  library_of(DispatchKey::NestedTensorPrivateUse1, "_")
      .fallback(CppFunction::makeFromBoxedFunction<&kernels::refuse_nested>());
  library_of(DispatchKey::PrivateUse1, "torch_remote")
      .impl("copy_generator", CppFunction::makeFromBoxedFunction<&dispatch>());
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto operation = dispatcher.findSchema(name);
    if (!operation.has_value())
      continue;
    if (name.name.starts_with(marshal::kAten))
      register_operator(*operation);
    else if (marshal::rules_of(name).route == Route::kReadsMemory)
      refuse_reading(*operation);
  }
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, RemoteGuard)

}  // namespace torch_remote::client

using namespace torch_remote::client;

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  kernels::register_autocast(m);
}

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &kernels::attention_choice)
}  // namespace at::native
