// How the executor runs programs: Note [Programs] in wire/program.h.
#include <utility>

#include "server/device/context.h"
#include "server/executor/execute.h"
#include "server/executor/failures.h"

namespace torch_remote::server {
namespace {

using marshal::TensorRecipe;

// The settings of this process as they are now, which come back at the end.
class KeptSettings {
 public:
  explicit KeptSettings(bool are_kept)
      : settings_(are_kept ? present_context() : wire::Context()) {}

  ~KeptSettings() { apply_context(settings_); }

  KeptSettings(const KeptSettings&) = delete;
  KeptSettings& operator=(const KeptSettings&) = delete;

 private:
  const wire::Context settings_;
};

// Frees a run's temporaries, however it ends.
class RunScope {
 public:
  RunScope(ProgramStorages& storages, const Program& program, Origin run) : storages_(storages) {
    storages.begin(program, run);
  }

  ~RunScope() { storages_.end(); }

  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  ProgramStorages& storages_;
};

}  // namespace

void Executor::run(const Program& program) {
  ++number_;
  const RunScope scope(program_storages_, program, here());
  if (C10_UNLIKELY(threads_.cause() != nullptr))
    return discard(program, threads_.cause());
  if (C10_UNLIKELY(is_cancelled()))
    return discard(program, fail_cancelled("a graph", false));
  if (C10_UNLIKELY(storages_.missing().any())) {
    if (const Cause cause = find_missing(program))
      return lose_made(program, stop(*cause));
  }
  for (const Program::Made& made : program.made())
    storages_.release(program_storages_.at(program, made.number));
  const KeptSettings settings(program.has_settings());
  program_ = program.name();
  try {
    for (step_ = 0; step_ < program.steps().size(); ++step_)
      run_step(program, program.steps()[step_]);
  } catch (...) {
    fail(std::current_exception(), program, step_);
  }
  program_ = 0;
  drop_storages();
}

wire::Warning Executor::running() const {
  wire::Warning warning;
  warning.call = number_;
  warning.program = program_;
  warning.step = program_ == 0 ? 0 : step_;
  return warning;
}

void Executor::run_step(const Program& program, const ProgramStep& step) {
  if (step.call == nullptr)
    return apply_context(step.settings);
  const CallPlan& call = *step.call;
  last_operation_ = call.operation;
  bindings_.begin(step.slots.generators);
  for (const uint64_t number : step.slots.storages)
    bindings_.add(program_storages_.at(program, number));
  run_.run(call, step.slots, bindings_, number_);
  if (C10_UNLIKELY(storages_.missing().any()))
    note_overwritten({call, step.slots, false});
  for (const uint64_t number : step.slots.outputs)
    bindings_.add_output(program_storages_.at(program, number));
  run_.store(call, bindings_);
  if (step.last_used.empty())
    return;
  drop_storages();
  for (const uint32_t number : step.last_used)
    program_storages_.free(number);
}

// As for a call, but a storage that a step before has given a value is not missing.
Cause Executor::find_missing(const Program& program) {
  std::vector<bool> has_value(program.storages().size(), false);
  for (const ProgramStep& step : program.steps()) {
    if (step.call == nullptr)
      continue;
    const std::vector<TensorRecipe>& views = step.call->plan.tensors;
    for (size_t i = 0; i < views.size(); ++i) {
      const uint64_t number = step.slots.storages[views[i].storage];
      if (program.storages()[number].name == 0 || has_value[number])
        continue;
      const Entry& entry = program_storages_.at(program, number);
      if (entry.missing == nullptr)
        continue;
      if (!overwrites(entry, views[i], step.slots.offsets[i]))
        return entry.missing;
      has_value[number] = true;
    }
    for (const uint64_t number : step.slots.outputs)
      has_value[number] = true;
  }
  return nullptr;
}

// The run is not done: what it would have made is missing, though an earlier run has made it too.
void Executor::discard(const Program& program, const Cause& cause) {
  lose_made(program, cause);
  for (const uint32_t number : program.written())
    discard(program_storages_.at(program, number), cause);
}

void Executor::lose_made(const Program& program, const Cause& cause) {
  for (const Program::Made& made : program.made()) {
    Entry& entry = program_storages_.at(program, made.number);
    storages_.release(entry);
    storages_.missing().set(entry, cause);
  }
}

void Executor::fail(std::exception_ptr cause, const Program& program, size_t at) {
  run_.drop_results();
  const ProgramStep& step = program.steps()[at];
  const CallPlan& call = *step.call;  // settings do not fail
  wire::Error failure = describe_failure(std::move(cause), call.operation->name);
  note_shortage(failure, call.plan.device);
  failure.call = number_;
  failure.program = program.name();
  failure.step = at;
  for (const Program::Made& result : program.made())
    if (failure.results.size() < wire::kMaxErrorResults)
      failure.results.push_back(program.storages()[result.number].name);
  for (const TensorRecipe& view : call.plan.tensors)
    if (view.is_written)
      storages_.settle_growth(program_storages_.at(program, step.slots.storages[view.storage]),
                              false);
  const Cause made = stop(std::move(failure));
  drop_storages();
  lose_made(program, made);
  for (const uint32_t number : program.written()) {
    Entry& entry = program_storages_.at(program, number);
    if (entry.holds_nothing() && entry.nbytes != 0)
      storages_.missing().set(entry, made);  // there was no memory for it
  }
}

}  // namespace torch_remote::server
