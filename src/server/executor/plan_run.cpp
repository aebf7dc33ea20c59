#include "server/executor/plan_run.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/log.h"
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

// The kernel must not change indices between their check and their use.
void check_index_storages(const marshal::Plan& plan, const Bindings& bindings) {
  c10::SmallVector<const Entry*, 8> written;
  for (const marshal::TensorRecipe& view : plan.tensors)
    if (view.is_written && view.is_argument)
      written.push_back(&bindings.storage_of(view));
  for (const marshal::SparseRecipe& sparse : plan.sparse)
    if (sparse.is_written)
      written.push_back(&bindings.storage_of(plan.tensors[sparse.parts.back()]));
  for (const marshal::SparseRecipe& sparse : plan.sparse) {
    for (size_t i = 0; i + 1 < sparse.parts.size(); ++i) {
      const Entry* indices = &bindings.storage_of(plan.tensors[sparse.parts[i]]);
      if (std::find(written.begin(), written.end(), indices) != written.end())
        throw Refused("writes memory that has the indices of a sparse argument");
    }
  }
}

}  // namespace

using marshal::Plan;
using marshal::Scalars;
using marshal::TensorRecipe;

void PlanRun::run(const CallPlan& call, const Scalars& scalars, Bindings& bindings,
                  uint64_t number) {
  ++calls_;
  invoke(call, scalars, bindings, number);
  check_written(call, scalars, bindings);
}

void PlanRun::invoke(const CallPlan& call, const Scalars& scalars, Bindings& bindings,
                     uint64_t number) {
  const Plan& plan = call.plan;
  if (C10_UNLIKELY(!plan.refusal.empty()))
    throw Refused(call.operation->name + ": " + plan.refusal);
  bindings.find_generators(call, generators_);
  if (devices_.is_cuda())
    use_device(plan.device);
  resolve_tensors(plan, scalars, bindings);
  if (C10_UNLIKELY(!plan.sparse.empty() || !sparse_.empty()))
    make_sparse_tensors(plan, bindings);
  stack_.clear();
  marshal::build_stack(plan, scalars, {tensors_, sparse_, generators_}, stack_);
  if (C10_UNLIKELY(call.operation->check != nullptr))
    call.operation->check(call.operation->handle->schema(), stack_);
  if (C10_LIKELY(call_log_ != nullptr))
    call_log_->add(calls_, call.operation->name);
  const CallTimer timer(call_log_, call.operation->time_row);
  const CallProfile::Timer profiled(profile_, number, plan.device);
  if (C10_LIKELY(!plan.grad_mode))  // the executor thread has it off
    return call.operation->handle->callBoxed(stack_);
  const at::AutoGradMode grad_mode(true);
  call.operation->handle->callBoxed(stack_);
}

void PlanRun::use_device(uint8_t device) {
  if (device == current_device_)
    return;
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(devices_.device(device));
  current_device_ = device;
}

void PlanRun::resolve_tensors(const Plan& plan, const Scalars& scalars, Bindings& bindings) {
  tensors_.clear();
  written_.clear();
  bindings.prepare(plan);
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorRecipe& view = plan.tensors[i];
    tensors_.push_back(bindings.resolve(view, scalars.offsets[i]));
    if (view.is_written && view.is_argument)
      written_.emplace_back(static_cast<uint32_t>(i), tensors_.back());
  }
  if (C10_LIKELY(plan.outputs_known))
    return;
  arguments_.clear();
  for (const at::Tensor& tensor : tensors_)
    arguments_.push_back(tensor.unsafeGetTensorImpl());
}

void PlanRun::make_sparse_tensors(const Plan& plan, const Bindings& bindings) {
  sparse_.clear();
  check_index_storages(plan, bindings);
  for (const marshal::SparseRecipe& recipe : plan.sparse) {
    sparse_.push_back(make_sparse(recipe, tensors_));
    // A kernel that looks at grad mode also asks whether an argument wants a gradient.
    if (plan.grad_mode && at::isFloatingType(sparse_.back().scalar_type()))
      sparse_.back().set_requires_grad(true);
  }
}

// Finds tensors that the operator has resized: an `out` that does not fit, or addbmm_'s `self`. The
// client is told if it waits for the results; else it has predicted the shape and the call fails.
void PlanRun::check_written(const CallPlan& call, const Scalars& scalars,
                            const Bindings& bindings) {
  resized_.clear();
  for (const auto& [index, tensor] : written_) {
    const TensorRecipe& view = call.plan.tensors[index];
    if (C10_LIKELY(tensor.sizes() == view.sizes && tensor.strides() == view.strides &&
                   tensor.is_conj() == view.conj && tensor.is_neg() == view.neg))
      continue;
    Entry& entry = bindings.storage_of(view);
    entry.last_view.reset();
    if (call.plan.outputs_known || !is_view_of(entry, tensor, scalars.offsets[index]))
      refuse_resized(tensor, view);
    resized_.push_back(resized_result(index, tensor));
  }
  // After all are checked.
  for (const wire::Result& result : resized_)
    storages_.settle_growth(bindings.storage_of(call.plan.tensors[result.tensor]), true);
  written_.clear();
  if (C10_UNLIKELY(!call.plan.sparse.empty()))
    check_written_sparse(call);
}

void PlanRun::check_written_sparse(const CallPlan& call) {
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

void PlanRun::store(const CallPlan& call, const Bindings& bindings) {
  if (C10_UNLIKELY(stack_.size() != call.plan.outputs.size()))
    throw Refused(c10::str("returned ", stack_.size(), " results, and the client had predicted ",
                           call.plan.outputs.size()));
  Storing storing{call, bindings.outputs().data(), nullptr};
  for (size_t i = 0; i < stack_.size(); ++i)
    store_output(call.plan.outputs[i], std::move(stack_[i]), storing);
  stack_.clear();
  if (C10_UNLIKELY(storing.refusal != nullptr))
    std::rethrow_exception(storing.refusal);
}

void PlanRun::store_output(const wire::Output& output, c10::IValue value, Storing& storing) {
  if (output.kind == wire::OutputKind::kFresh) {
    at::Tensor tensor = value.isTensor() ? std::move(value).toTensor() : at::Tensor();
    return store_fresh(output, std::move(tensor), **storing.next++, storing);
  }
  const std::string& name = storing.call.operation->name;
  if (output.kind == wire::OutputKind::kInt &&
      !(value.isInt() && value.toInt() == output.integer)) {
    ++mispredicted_;  // the client already uses its number
    log(LogLevel::kWarning, "mispredicted", {{"operator", name}, {"difference", "a number"}});
  }
  if (output.kind == wire::OutputKind::kUndefined && value.isTensor() &&
      value.toTensor().defined()) {
    ++mispredicted_;  // the client has no name for it
    log(LogLevel::kWarning, "mispredicted",
        {{"operator", name}, {"difference", "a tensor where none was expected"}});
  }
  if (output.kind != wire::OutputKind::kList)
    return;
  c10::List<at::Tensor> list;
  if (value.isTensorList())
    list = std::move(value).toTensorList();
  for (size_t i = 0; i < output.items.size(); ++i) {
    at::Tensor tensor = i < list.size() ? list.extract(i) : at::Tensor();
    store_output(output.items[i], std::move(tensor), storing);
  }
}

void PlanRun::store_fresh(const wire::Output& output, at::Tensor tensor, Entry& entry,
                          Storing& storing) {
  const Operator& operation = *storing.call.operation;
  try {
    if (C10_UNLIKELY(operation.shares_outputs))  // as the client was told in its first query
      tensor = own_output(std::move(tensor), entry.device);
    Matched matched = match_output(std::move(tensor), output.spec, entry.device);
    if (C10_UNLIKELY(!matched.difference.empty())) {
      log(++mispredicted_ <= kLoudMispredictions ? LogLevel::kWarning : LogLevel::kDebug,
          "mispredicted", {{"operator", operation.name}, {"difference", matched.difference}});
    }
    storages_.adopt(entry, std::move(matched.tensor));
  } catch (...) {
    if (storing.refusal == nullptr)
      storing.refusal = std::current_exception();
  }
}

PlanRun::Results PlanRun::describe(const CallPlan& call) {
  const c10::Device device = devices_.device(call.plan.device);
  Results out;
  marshal::PointerIndex index;
  for (c10::IValue& value : stack_)
    out.results.push_back(describe_result(std::move(value), {arguments_, tensors_, sparse_, device},
                                          index, out.fresh));
  stack_.clear();
  describe_rewritten(device, out.fresh);
  if (!resized_.empty()) {
    wire::Result& resized = out.results.emplace_back();
    resized.kind = wire::ResultKind::kList;
    resized.items = std::move(resized_);
  }
  return out;
}

void PlanRun::describe_rewritten(c10::Device device, std::vector<at::Tensor>& fresh) {
  for (const uint32_t index : rewritten_) {
    wire::Result result = describe_sparse(std::move(sparse_[index]), tensors_, device, fresh);
    result.kind = wire::ResultKind::kRewritten;
    result.tensor = index;
    resized_.push_back(std::move(result));
  }
  rewritten_.clear();
}

}  // namespace torch_remote::server
