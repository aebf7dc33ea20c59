// What an Executor does with failures: Note [Poison] in server/execute.h.
#include "base/log.h"
#include "server/errors.h"
#include "server/execute.h"

namespace torch_remote::server {

using marshal::Plan;
using marshal::Slots;
using marshal::TensorRecipe;

Poison Executor::find_cause(const Plan& plan, const Slots& slots) const {
  Poison first;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorRecipe& view = plan.tensors[i];
    const Entry& entry = *entries_[view.storage];
    if (C10_LIKELY(entry.taint == nullptr))
      continue;
    const bool is_overwritten =
        !view.is_read && StorageTable::covers(entry, view, slots.offsets[i]);
    if (!is_overwritten)
      first = earlier(first, entry.taint->cause());
  }
  return first;
}

void Executor::poison_targets(const Plan& plan, const Poison& poison, bool only_fresh) {
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    if (plan.storages[i].fresh)
      entries_[i]->tainted().poison_with(poison);
  }
  if (only_fresh)
    return;
  for (const TensorRecipe& view : plan.tensors) {
    if (view.is_written)
      entries_[view.storage]->tainted().poison_with(poison);
  }
}

void Executor::skip(const Plan& plan, const Poison& cause) {
  failures_.list(cause);
  poison_targets(plan, cause, true);
  for (const TensorRecipe& view : plan.tensors) {
    if (!view.is_written)
      continue;
    entries_[view.storage]->tainted().mark_skipped(cause, number_);
    has_marks_ = true;
  }
}

void Executor::keep_targets(const Plan& plan) {
  for (const TensorRecipe& view : plan.tensors) {
    if (!view.is_written || plan.storages[view.storage].fresh ||
        entries_[view.storage]->made > keeping_for_->made)
      continue;
    if (!storages_.keep(*entries_[view.storage]))
      return stop_keeping();
  }
}

void Executor::keep_other(Entry& entry) {
  if (keeping_for_ != nullptr && entry.made <= keeping_for_->made && !storages_.keep(entry))
    stop_keeping();
}

void Executor::stop_keeping() {
  keeping_for_.reset();
  storages_.drop_kept();
  generators_.drop_kept();
}

void Executor::locate(wire::Error& lost) const {
  lost.call = number_;
  lost.first = std::min(last_good_ + 1, number_);
  if (last_operation_ != nullptr)
    lost.operator_name = last_operation_->name;
}

void Executor::heal(const wire::Heal& message) {
  failures_.told(message.cause);
  const bool is_newest = keeping_for_ != nullptr && keeping_for_->call == message.cause;
  if (has_marks_ || (message.undoes && is_newest))
    has_marks_ = storages_.heal(message, is_newest);
  if (message.undoes && is_newest)
    generators_.put_back();
  if (is_newest)
    stop_keeping();
}

void Executor::forgive() {
  if (outcome_ == nullptr || outcome_->call != number_)
    return;  // it read an older poison, and was skipped
  for (Entry* entry : entries_) {
    if (entry->taint == nullptr)
      continue;
    entry->taint->forgive(outcome_);
  }
}

Poison Executor::remember_failure(wire::Error error) {
  error.call = number_;
  const auto poison = std::make_shared<Failure>(Failure{std::move(error)});
  poison->made = storages_.made();
  ++failed_;
  stop_keeping();
  keeping_for_ = poison;
  failures_.add(poison);
  log(LogLevel::kInfo, "a call failed",
      {{"call", number_},
       {"operator", poison->operator_name},
       {"message", std::string_view(poison->message).substr(0, 500)}});
  return poison;
}

void Executor::fail_other(std::exception_ptr cause, const std::string& what, Entry& entry) {
  const Poison poison = remember_failure(describe_failure(std::move(cause), what));
  entry.tainted().poison_with(poison);  // after the line before, which may take its taint away
}

Poison Executor::note_failure(std::exception_ptr cause, const CallPlan& call) {
  wire::Error failure = describe_failure(std::move(cause), call.operation->name);
  failure.signature = call.slot + 1;
  return outcome_ = remember_failure(std::move(failure));
}

Poison Executor::fail(std::exception_ptr cause, const CallPlan& call, bool is_waited_for) {
  stack_.clear();
  written_.clear();
  for (const TensorRecipe& view : call.plan.tensors) {
    if (view.is_written)  // the client does not know of it
      storages_.give_growth_back(*entries_[view.storage]);
  }
  const Poison poison = note_failure(std::move(cause), call);
  poison_targets(call.plan, poison, is_waited_for);
  return poison;
}

void Executor::clear_taint(const Plan& plan, const Slots& slots) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorRecipe& view = plan.tensors[i];
    Entry& entry = *entries_[view.storage];
    if (C10_LIKELY(entry.taint == nullptr) || view.is_read)
      continue;
    if (StorageTable::covers(entry, view, slots.offsets[i]))
      entry.taint->overwrite();
  }
}

}  // namespace torch_remote::server
