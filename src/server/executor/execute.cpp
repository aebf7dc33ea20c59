#include "server/executor/execute.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "server/executor/failures.h"
#include "server/executor/memory.h"

namespace torch_remote::server {

using marshal::Slots;
using marshal::TensorRecipe;

// --- calls

void Executor::call(const CallPlan& signature, const Slots& slots) {
  run_known({signature, slots, false});
}

Cause Executor::checked_call(const CallPlan& signature, const Slots& slots) {
  return run_known({signature, slots, true});
}

Cause Executor::run(const Call& call) {
  const CallPlan& signature = call.signature;
  ++number_;
  last_operation_ = signature.operation;
  bindings_.bind(signature.plan, call.slots, here());
  if (C10_UNLIKELY(threads_.cause() != nullptr) && !is_constant(call)) {
    discard(signature.plan, threads_.cause());
    return threads_.cause();
  }
  if (C10_UNLIKELY(is_cancelled())) {
    const Cause cause = fail_cancelled(signature.operation->name, call.is_waited_for);
    discard(signature.plan, cause);
    return cause;
  }
  if (C10_UNLIKELY(storages_.missing().any())) {
    if (const Cause cause = find_missing(call))
      return call.is_waited_for ? cause : stop(*cause);
  }
  try {
    run_.run(signature, call.slots, bindings_, number_);
  } catch (...) {
    return fail(std::current_exception(), call);
  }
  if (C10_UNLIKELY(storages_.missing().any()))
    note_overwritten(call);
  return nullptr;
}

Cause Executor::run_known(const Call& call) {
  if (!call.signature.plan.outputs_known)
    throw ProtocolError("a call's outputs are not known");
  Cause cause = run(call);
  bindings_.bind_outputs(call.signature.plan, call.slots, here());
  if (C10_LIKELY(cause == nullptr)) {
    try {
      run_.store(call.signature, bindings_);
      return nullptr;
    } catch (...) {
      cause = fail(std::current_exception(), call);
    }
  }
  for (Entry* const output : bindings_.outputs())
    if (!output->storage)
      storages_.missing().set(*output, cause);
  return cause;
}

Executor::Answer Executor::query(const CallPlan& signature, const Slots& slots, uint64_t first,
                                 uint64_t names) {
  const marshal::Plan& plan = signature.plan;
  if (plan.outputs_known)
    throw ProtocolError("a queried call has outputs that are known");
  const Call call{signature, slots, true};
  Answer answer;
  answer.failure = run(call);
  if (answer.failure != nullptr)
    return answer;
  try {
    PlanRun::Results out = run_.describe(signature);
    name_fresh(std::move(out.fresh), devices_.device(plan.device), first, names);
    for (const marshal::SparseRecipe& recipe : plan.sparse)
      for (const uint32_t part : recipe.parts)  // a kernel may have resized it; the client has not
        storages_.settle_growth(bindings_.storage_of(plan.tensors[part]), false);
    answer.results = std::move(out.results);
  } catch (...) {
    answer.failure = fail(std::current_exception(), call);
  }
  return answer;
}

void Executor::name_fresh(std::vector<at::Tensor> fresh, c10::Device device, uint64_t first,
                          uint64_t names) {
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
}

// --- what is missing

Cause Executor::find_missing(const Call& call) const {
  const std::vector<TensorRecipe>& views = call.signature.plan.tensors;
  for (size_t i = 0; i < views.size(); ++i) {
    const Entry& entry = bindings_.storage_of(views[i]);
    if (C10_LIKELY(entry.missing == nullptr))
      continue;
    if (!overwrites(entry, views[i], call.slots.offsets[i]))
      return entry.missing;
  }
  return nullptr;
}

void Executor::note_overwritten(const Call& call) {
  const std::vector<TensorRecipe>& views = call.signature.plan.tensors;
  for (size_t i = 0; i < views.size(); ++i) {
    Entry& entry = bindings_.storage_of(views[i]);
    if (entry.missing != nullptr && overwrites(entry, views[i], call.slots.offsets[i]))
      storages_.missing().clear(entry);
  }
}

bool Executor::is_constant(const Call& call) const {
  const marshal::Plan& plan = call.signature.plan;
  if (plan.takes_no_generator || call.signature.operation->is_seeded ||
      !call.slots.generators.empty() || !plan.outputs_known)
    return false;
  for (const TensorRecipe& view : plan.tensors) {
    const Entry& entry = bindings_.storage_of(view);
    if (view.is_read || !threads_.is_made_since(entry.made) || entry.missing != nullptr)
      return false;
  }
  return true;
}

void Executor::discard(const marshal::Plan& plan, const Cause& cause) {
  for (const TensorRecipe& view : plan.tensors)
    if (view.is_written)
      discard(bindings_.storage_of(view), cause);
}

void Executor::discard(Entry& entry, const Cause& cause) {
  const bool is_cancelled = cause->kind == wire::ErrorKind::kCancelled;
  if (entry.holds_nothing() && (is_cancelled || threads_.is_made_since(entry.made)))
    storages_.missing().set(entry, cause);
}

// --- failures

Cause Executor::fail(std::exception_ptr cause, const Call& call) {
  run_.drop_results();
  const CallPlan& signature = call.signature;
  wire::Error failure = describe_failure(std::move(cause), signature.operation->name);
  failure.signature = signature.index + 1;
  note_shortage(failure, signature.plan.device);
  failure.call = number_;
  const auto add_result = [&](uint64_t name) {
    if (failure.results.size() < wire::kMaxErrorResults)
      failure.results.push_back(name);
  };
  for (const uint64_t name : call.slots.outputs)
    add_result(name);
  for (const TensorRecipe& view : signature.plan.tensors) {
    if (!view.is_written)
      continue;
    // The client does not know the new size.
    storages_.settle_growth(bindings_.storage_of(view), false);
    add_result(call.slots.storages[view.storage]);
  }
  const Cause made = cause_of(std::move(failure), call.is_waited_for);
  for (const TensorRecipe& view : signature.plan.tensors) {
    Entry& entry = bindings_.storage_of(view);
    if (view.is_written && entry.holds_nothing() && entry.nbytes != 0)
      storages_.missing().set(entry, made);  // there was no memory for it
  }
  return made;
}

void Executor::note_shortage(wire::Error& failure, uint8_t device) {
  if (failure.kind != wire::ErrorKind::kOutOfMemory)
    return;
  ++storages_.account().use(device).ooms;
  add_memory_figures(failure, storages_, device);
}

Cause Executor::cause_of(wire::Error failure, bool is_waited_for) {
  if (threads_.cause() != nullptr)  // a constant that failed, as for lack of memory
    return threads_.cause();
  if (!is_waited_for)
    return stop(std::move(failure));
  ++failed_;
  return threads_.keep(std::move(failure));
}

Cause Executor::fail_cancelled(std::string what, bool is_waited_for) {
  wire::Error failure;
  failure.kind = wire::ErrorKind::kCancelled;
  failure.operator_name = std::move(what);
  failure.message = "dropped by torch_remote.cancel() before it began";
  failure.call = number_;
  return cause_of(std::move(failure), is_waited_for);
}

Cause Executor::stop(wire::Error failure) {
  ++failed_;
  log(LogLevel::kInfo, "a call failed",
      {{"call", failure.call},
       {"operator", failure.operator_name},
       {"message", std::string_view(failure.message).substr(0, 500)}});
  return threads_.stop(std::move(failure), number_);
}

void Executor::fail_resize_or_upload(std::exception_ptr cause, const char* what, Entry& entry,
                                     bool has_lost_it) {
  wire::Error failure = describe_failure(std::move(cause), what);
  note_shortage(failure, entry.number);
  failure.call = number_;
  const Cause made = threads_.cause() != nullptr ? threads_.cause() : stop(std::move(failure));
  if (entry.holds_nothing() || has_lost_it)
    storages_.missing().set(entry, made);
}

void Executor::locate(wire::Error& lost) const {
  lost.call = number_;
  lost.first = std::min(last_good_ + 1, number_);
  if (last_operation_ != nullptr)
    lost.operator_name = last_operation_->name;
}

// --- messages that have numbers like calls

void Executor::resize(const wire::Resize& message) {
  ++number_;
  if (!storages_.contains(message.storage)) {
    storages_.make(message.storage, message.nbytes, devices_.device(message.device), message.device,
                   here());
    return;
  }
  Entry& entry = storages_.find(message.storage);
  try {
    storages_.resize(entry, message.nbytes);
  } catch (...) {
    fail_resize_or_upload(std::current_exception(), "resize", entry, true);
  }
}

}  // namespace torch_remote::server
