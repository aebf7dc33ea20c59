// How an Executor handles failed calls and calls of stopped threads: Note [Fail-stop] in
// wire/messages.h, Note [Missing storages] in server/executor/execute.h.
#include "base/log.h"
#include "server/executor/errors.h"
#include "server/executor/execute.h"
#include "server/executor/memory.h"

namespace torch_remote::server {

using marshal::Plan;
using marshal::Slots;
using marshal::TensorRecipe;

Cause Executor::find_missing(const Plan& plan, const Slots& slots) const {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorRecipe& view = plan.tensors[i];
    const Entry& entry = *entries_[view.storage];
    if (C10_LIKELY(entry.missing == nullptr))
      continue;
    if (view.is_read || !covers(entry, view, slots.offsets[i]))
      return entry.missing;
  }
  return nullptr;
}

void Executor::note_overwritten(const Plan& plan, const Slots& slots) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorRecipe& view = plan.tensors[i];
    Entry& entry = *entries_[view.storage];
    if (entry.missing != nullptr && !view.is_read && covers(entry, view, slots.offsets[i]))
      storages_.set_missing(entry, nullptr);
  }
}

bool Executor::is_constant(const CallPlan& call, const Slots& slots) const {
  if (call.plan.takes_no_generator || call.operation->is_seeded || !slots.generators.empty() ||
      !call.plan.outputs_known)
    return false;
  for (const TensorRecipe& view : call.plan.tensors) {
    const Entry& entry = *entries_[view.storage];
    if (view.is_read || !threads_.is_made_since(entry.made) || entry.missing != nullptr)
      return false;
  }
  return true;
}

void Executor::discard(const Plan& plan, const Cause& cause) {
  stack_.clear();
  for (const TensorRecipe& view : plan.tensors) {
    Entry& entry = *entries_[view.storage];
    const bool holds_nothing = !entry.storage && entry.upload == nullptr;
    if (view.is_written && holds_nothing && threads_.is_made_since(entry.made))
      storages_.set_missing(entry, cause);
  }
}

void Executor::make_missing(const CallPlan& call, const std::vector<wire::Output>& outputs,
                            const Cause& cause, const uint64_t*& name) {
  for (const wire::Output& output : outputs) {
    if (output.kind == wire::OutputKind::kFresh) {
      const uint64_t nbytes = wire::extent_bytes(output.spec);
      Entry& entry = storages_.make(*name++, nbytes, devices_.device(call.plan.device),
                                    call.plan.device, here());
      storages_.set_missing(entry, cause);
    }
    make_missing(call, output.items, cause, name);
  }
}

Cause Executor::fail(std::exception_ptr cause, const CallPlan& call, const Slots& slots) {
  stack_.clear();
  written_.clear();
  wire::Error failure = describe_failure(std::move(cause), call.operation->name);
  failure.signature = call.slot + 1;
  note_shortage(failure, call.plan.device);
  failure.call = number_;
  const auto add_result = [&](uint64_t name) {
    if (failure.results.size() < wire::kMaxErrorResults)
      failure.results.push_back(name);
  };
  for (const uint64_t name : slots.outputs)
    add_result(name);
  for (const TensorRecipe& view : call.plan.tensors) {
    if (!view.is_written)
      continue;
    // The client does not know the new size.
    storages_.settle_growth(*entries_[view.storage], false);
    add_result(slots.storages[view.storage]);
  }
  const Cause made = cause_of(std::move(failure));
  for (const TensorRecipe& view : call.plan.tensors) {
    Entry& entry = *entries_[view.storage];
    if (view.is_written && !entry.storage && entry.upload == nullptr && entry.nbytes != 0)
      storages_.set_missing(entry, made);  // there was no memory for it
  }
  return made;
}

void Executor::note_shortage(wire::Error& failure, uint8_t device) {
  if (failure.kind != wire::ErrorKind::kOutOfMemory)
    return;
  ++storages_.memory_use(device).ooms;
  add_memory_figures(failure, storages_, device);
}

Cause Executor::cause_of(wire::Error failure) {
  if (threads_.cause() != nullptr)  // a constant that failed, as for lack of memory
    return threads_.cause();
  if (!is_waited_for_)
    return stop(std::move(failure));
  ++failed_;
  return threads_.keep(std::move(failure));
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
  const bool holds_nothing = !entry.storage && entry.upload == nullptr;
  if (holds_nothing || has_lost_it)
    storages_.set_missing(entry, made);
}

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

void Executor::locate(wire::Error& lost) const {
  lost.call = number_;
  lost.first = std::min(last_good_ + 1, number_);
  if (last_operation_ != nullptr)
    lost.operator_name = last_operation_->name;
}

}  // namespace torch_remote::server
