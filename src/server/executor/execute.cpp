#include "server/executor/execute.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"
#include "base/log.h"
#include "server/executor/errors.h"
#include "server/executor/outputs.h"
#include "server/executor/sparse.h"

namespace torch_remote::server {
namespace {

// After so many mispredictions they are logged for debugging only: a model repeats the same ones.
constexpr uint64_t kLoudMispredictions = 20;

std::string describe(c10::IntArrayRef sizes, c10::IntArrayRef strides, bool conj, bool neg) {
  return c10::str(sizes, " with strides ", strides, conj ? ", conjugated" : "",
                  neg ? ", negated" : "");
}

[[noreturn]] void refuse_resized(const at::Tensor& tensor, const marshal::TensorRecipe& view) {
  throw Refused("gave its output the sizes " +
                describe(tensor.sizes(), tensor.strides(), tensor.is_conj(), tensor.is_neg()) +
                ", and the client had predicted " +
                describe(view.sizes, view.strides, view.conj, view.neg));
}

}  // namespace

using marshal::Plan;
using marshal::Slots;
using marshal::TensorRecipe;

void Executor::find_storages(const Plan& plan, const Slots& slots) {
  entries_.clear();
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    const wire::FreshStorage& storage = plan.storages[i];
    entries_.push_back(storage.fresh ? &storages_.make(slots.storages[i], storage.nbytes,
                                                       devices_.device(storage.device),
                                                       storage.device, here())
                                     : &storages_.find(slots.storages[i]));
  }
}

Cause Executor::run(const CallPlan& call, const Slots& slots, bool is_waited_for) {
  ++number_;
  is_waited_for_ = is_waited_for;
  last_operation_ = call.operation;
  find_storages(call.plan, slots);
  if (C10_UNLIKELY(threads_.cause() != nullptr) && !is_constant(call, slots)) {
    discard(call.plan, threads_.cause());
    return threads_.cause();
  }
  if (C10_UNLIKELY(storages_.has_missing())) {
    if (const Cause cause = find_missing(call.plan, slots))
      return is_waited_for ? cause : stop(*cause);
  }
  try {
    ++calls_;
    invoke(call, slots);
    check_written(call, slots);
  } catch (...) {
    return fail(std::current_exception(), call, slots);
  }
  if (C10_UNLIKELY(storages_.has_missing()))
    note_overwritten(call.plan, slots);
  return nullptr;
}

void Executor::invoke(const CallPlan& call, const Slots& slots) {
  const Plan& plan = call.plan;
  if (C10_UNLIKELY(!plan.refusal.empty()))
    throw Refused(call.operation->name + ": " + plan.refusal);
  find_generators(call, slots);
  if (devices_.is_cuda())
    use_device(plan.device);
  resolve_tensors(plan, slots);
  if (C10_UNLIKELY(!plan.sparse.empty() || !sparse_.empty()))
    make_sparse_tensors(plan);
  stack_.clear();
  marshal::build_stack(plan, slots, {tensors_, sparse_, call_generators_}, stack_);
  if (C10_UNLIKELY(call.operation->check != nullptr))
    call.operation->check(call.operation->handle->schema(), stack_);
  if (C10_LIKELY(call_log_ != nullptr))
    call_log_->add(calls_, call.operation->name);
  const CallTimer timer(call_log_, call.operation->place);
  const CallProfile::Timer profiled(profile_, number_, plan.device);
  if (C10_LIKELY(!plan.grad_mode))  // the executor thread has it off
    return call.operation->handle->callBoxed(stack_);
  const at::AutoGradMode grad_mode(true);
  call.operation->handle->callBoxed(stack_);
}

void Executor::find_generators(const CallPlan& call, const Slots& slots) {
  call_generators_.clear();
  for (const uint64_t name : slots.generators)
    call_generators_.push_back(generators_.find(name));
  const bool draws_from_default =
      call.plan.takes_no_generator || (call.operation->is_seeded && slots.generators.empty());
  if (draws_from_default)
    generators_.use_default_of(call.plan.device);
}

void Executor::use_device(uint8_t device) {
  if (device == current_device_)
    return;
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(devices_.device(device));
  current_device_ = device;
}

void Executor::resolve_tensors(const Plan& plan, const Slots& slots) {
  tensors_.clear();
  written_.clear();
  arguments_.clear();
  // First for all storages: this may move a storage, and all views of it must see the same memory.
  for (const TensorRecipe& view : plan.tensors)
    storages_.prepare(*entries_[view.storage], view.may_change);
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorRecipe& view = plan.tensors[i];
    Entry& entry = *entries_[view.storage];
    tensors_.push_back(storages_.resolve(entry, view, slots.offsets[i]));
    arguments_.push_back(tensors_.back().unsafeGetTensorImpl());
    if (view.is_written && view.is_argument)
      written_.emplace_back(static_cast<uint32_t>(i), tensors_.back());
  }
}

void Executor::check_index_storages(const Plan& plan) const {
  c10::SmallVector<const Entry*, 8> written;
  for (const TensorRecipe& view : plan.tensors)
    if (view.is_written && view.is_argument)
      written.push_back(entries_[view.storage]);
  for (const marshal::SparseRecipe& sparse : plan.sparse)
    if (sparse.is_written)
      written.push_back(entries_[plan.tensors[sparse.parts.back()].storage]);
  for (const marshal::SparseRecipe& sparse : plan.sparse) {
    for (size_t i = 0; i + 1 < sparse.parts.size(); ++i) {
      const Entry* indices = entries_[plan.tensors[sparse.parts[i]].storage];
      if (std::find(written.begin(), written.end(), indices) != written.end())
        throw Refused("writes memory that has the indices of a sparse argument");
    }
  }
}

void Executor::make_sparse_tensors(const Plan& plan) {
  sparse_.clear();
  check_index_storages(plan);
  for (const marshal::SparseRecipe& recipe : plan.sparse) {
    sparse_.push_back(make_sparse(recipe, tensors_));
    // A kernel that looks at grad mode also asks whether an argument wants a gradient.
    if (plan.grad_mode && at::isFloatingType(sparse_.back().scalar_type()))
      sparse_.back().set_requires_grad(true);
  }
}

// Finds tensors that the operator has resized: an `out` that does not fit, or addbmm_'s `self`. The
// client is told if it waits for the results; else it has predicted the shape and the call fails.
void Executor::check_written(const CallPlan& call, const Slots& slots) {
  resized_.clear();
  for (const auto& [index, tensor] : written_) {
    const TensorRecipe& view = call.plan.tensors[index];
    if (C10_LIKELY(tensor.sizes() == view.sizes && tensor.strides() == view.strides &&
                   tensor.is_conj() == view.conj && tensor.is_neg() == view.neg))
      continue;
    entries_[view.storage]->last_view.reset();
    if (call.plan.outputs_known ||
        !is_view_of(*entries_[view.storage], tensor, slots.offsets[index]))
      refuse_resized(tensor, view);
    resized_.push_back(resized_result(index, tensor));
  }
  // After all are checked.
  for (const wire::Result& result : resized_)
    storages_.settle_growth(*entries_[call.plan.tensors[result.tensor].storage], true);
  written_.clear();
  if (C10_UNLIKELY(!call.plan.sparse.empty()))
    check_written_sparse(call);
}

void Executor::check_written_sparse(const CallPlan& call) {
  rewritten_.clear();
  for (size_t i = 0; i < sparse_.size(); ++i) {
    const marshal::SparseRecipe& recipe = call.plan.sparse[i];
    if (recipe.is_written && !is_unchanged(sparse_[i], recipe, tensors_))
      rewritten_.push_back(static_cast<uint32_t>(i));
  }
  if (call.plan.outputs_known && !rewritten_.empty())
    throw Refused("changed the parts of a sparse tensor, and the client does not wait for them");
}

// --- what came out

void Executor::call(const CallPlan& call, const Slots& slots) {
  run_known(call, slots, false);
}

Cause Executor::checked_call(const CallPlan& call, const Slots& slots) {
  return run_known(call, slots, true);
}

Cause Executor::run_known(const CallPlan& call, const Slots& slots, bool is_waited_for) {
  if (!call.plan.outputs_known)
    throw ProtocolError("a call's outputs are not known");
  Cause cause = run(call, slots, is_waited_for);
  if (C10_UNLIKELY(cause == nullptr && stack_.size() != call.plan.outputs.size())) {
    const Refused refusal(c10::str("returned ", stack_.size(),
                                   " results, and the client had predicted ",
                                   call.plan.outputs.size()));
    cause = fail(std::make_exception_ptr(refusal), call, slots);
  }
  const uint64_t* name = slots.outputs.data();
  if (C10_UNLIKELY(cause != nullptr))
    make_missing(call, call.plan.outputs, cause, name);
  else
    cause = store_outputs(call, slots);
  return cause;
}

// Null, or the error of the first output that could not be stored.
Cause Executor::store_outputs(const CallPlan& call, const Slots& slots) {
  const uint64_t* name = slots.outputs.data();
  std::exception_ptr refusal;
  for (size_t i = 0; i < stack_.size(); ++i)
    store_output(call, call.plan.outputs[i], std::move(stack_[i]), name, refusal);
  stack_.clear();
  if (C10_LIKELY(refusal == nullptr))
    return nullptr;
  const Cause cause = fail(refusal, call, slots);
  for (const uint64_t output : slots.outputs) {
    Entry& entry = storages_.find(output);
    if (!entry.storage)
      storages_.set_missing(entry, cause);
  }
  return cause;
}

void Executor::store_output(const CallPlan& call, const wire::Output& output, c10::IValue value,
                            const uint64_t*& name, std::exception_ptr& refusal) {
  if (output.kind == wire::OutputKind::kFresh) {
    at::Tensor tensor = value.isTensor() ? std::move(value).toTensor() : at::Tensor();
    return store_fresh(call, output, std::move(tensor), *name++, refusal);
  }
  if (output.kind == wire::OutputKind::kInt &&
      !(value.isInt() && value.toInt() == output.integer)) {
    ++mispredicted_;  // the client already uses its number
    log(LogLevel::kWarning, "mispredicted",
        {{"operator", call.operation->name}, {"difference", "a number"}});
  }
  if (output.kind == wire::OutputKind::kUndefined && value.isTensor() &&
      value.toTensor().defined()) {
    ++mispredicted_;  // the client has no name for it
    log(LogLevel::kWarning, "mispredicted",
        {{"operator", call.operation->name}, {"difference", "a tensor where none was expected"}});
  }
  if (output.kind != wire::OutputKind::kList)
    return;
  c10::List<at::Tensor> list;
  if (value.isTensorList())
    list = std::move(value).toTensorList();
  for (size_t i = 0; i < output.items.size(); ++i) {
    at::Tensor tensor = i < list.size() ? list.extract(i) : at::Tensor();
    store_output(call, output.items[i], std::move(tensor), name, refusal);
  }
}

void Executor::store_fresh(const CallPlan& call, const wire::Output& output, at::Tensor tensor,
                           uint64_t name, std::exception_ptr& refusal) {
  const c10::Device device = devices_.device(call.plan.device);
  Entry& entry =
      storages_.make(name, wire::extent_bytes(output.spec), device, call.plan.device, here());
  try {
    if (C10_UNLIKELY(call.operation->shares_outputs))
      tensor = own_output(std::move(tensor), device);  // as the client was told in its first query
    Matched matched = match_output(std::move(tensor), output.spec, device);
    if (C10_UNLIKELY(!matched.difference.empty())) {
      log(++mispredicted_ <= kLoudMispredictions ? LogLevel::kWarning : LogLevel::kDebug,
          "mispredicted", {{"operator", call.operation->name}, {"difference", matched.difference}});
    }
    storages_.adopt(entry, std::move(matched.tensor));
  } catch (...) {
    if (refusal == nullptr)
      refusal = std::current_exception();
  }
}

Executor::Answer Executor::query(const CallPlan& call, const Slots& slots, uint64_t first,
                                 uint64_t names) {
  if (call.plan.outputs_known)
    throw ProtocolError("a queried call has outputs that are known");
  Answer answer;
  answer.failure = run(call, slots, true);
  if (answer.failure != nullptr)
    return answer;
  try {
    answer.results = describe_results(devices_.device(call.plan.device), first, names);
    for (const marshal::SparseRecipe& recipe : call.plan.sparse)
      for (const uint32_t part : recipe.parts)  // a kernel may have resized it; the client has not
        storages_.settle_growth(*entries_[call.plan.tensors[part].storage], false);
  } catch (...) {
    answer.failure = fail(std::current_exception(), call, slots);
  }
  return answer;
}

void Executor::describe_rewritten(c10::Device device, std::vector<at::Tensor>& fresh) {
  for (const uint32_t index : rewritten_) {
    wire::Result result = describe_sparse(std::move(sparse_[index]), tensors_, device, fresh);
    result.kind = wire::ResultKind::kRewritten;
    result.tensor = index;
    resized_.push_back(std::move(result));
  }
  rewritten_.clear();
}

std::vector<wire::Result> Executor::describe_results(c10::Device device, uint64_t first,
                                                     uint64_t names) {
  std::vector<wire::Result> results;
  std::vector<at::Tensor> fresh;
  marshal::PointerIndex index;
  for (c10::IValue& value : stack_)
    results.push_back(
        describe_result(std::move(value), {arguments_, tensors_, sparse_, device}, index, fresh));
  stack_.clear();
  describe_rewritten(device, fresh);
  if (fresh.size() > names)
    throw Refused("returned more tensors than the client has names for");
  uint64_t next = first;
  try {
    for (at::Tensor& tensor : fresh) {
      Entry& entry = storages_.make(next, 0, device, devices_.index_of(device), here());
      ++next;
      storages_.adopt(entry, std::move(tensor));
    }
  } catch (...) {
    while (next > first)  // the client does not learn their names
      storages_.free(--next);
    throw;
  }
  if (!resized_.empty()) {
    wire::Result& resized = results.emplace_back();
    resized.kind = wire::ResultKind::kList;
    resized.items = std::move(resized_);
  }
  return results;
}

}  // namespace torch_remote::server
