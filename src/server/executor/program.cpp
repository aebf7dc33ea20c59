#include "server/executor/program.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {

Program::Program(wire::ProgramHead head, unsigned devices)
    : name_(head.program),
      storages_(std::move(head.storages)),
      bytes_(storages_.size() * sizeof(wire::ProgramStorage)),
      last_step_(storages_.size(), 0),
      is_written_(storages_.size(), false) {
  for (const wire::ProgramStorage& storage : storages_)
    if (storage.name == 0 && storage.device >= devices)
      throw ProtocolError("a temporary of a program is on a device that is not there");
}

void Program::check_number(uint64_t number) const {
  if (number >= storages_.size())
    throw ProtocolError("a program has no storage with the number " + std::to_string(number));
}

void Program::mention(uint64_t number) {
  last_step_[number] = static_cast<uint32_t>(steps_.size()) + 1;
}

void Program::add_settings(wire::Context settings) {
  has_settings_ = true;
  ProgramStep step;
  step.settings = std::move(settings);
  bytes_ += sizeof(step) + step.settings.settings.size() * sizeof(wire::SettingValue);
  steps_.push_back(std::move(step));
}

void Program::add_call(std::shared_ptr<const CallPlan> call, const marshal::Slots& slots) {
  const marshal::Plan& plan = call->plan;
  if (!plan.outputs_known)
    throw ProtocolError("a step's outputs are not known");
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    if (plan.storages[i].fresh)
      throw ProtocolError("a step makes a storage that is no output");
    check_number(slots.storages[i]);
  }
  for (const uint64_t number : slots.storages)
    mention(number);
  for (const marshal::TensorRecipe& view : plan.tensors)
    if (view.is_written)
      is_written_[slots.storages[view.storage]] = true;
  for (const uint64_t number : slots.outputs) {
    check_number(number);
    if (last_step_[number] != 0)
      throw ProtocolError("a step makes a storage that was mentioned before");
    mention(number);
    if (!is_temporary(number))
      made_.push_back(static_cast<uint32_t>(number));
  }
  const uint64_t slot_bytes = 2 * sizeof(uint64_t) * plan.tensors.size() +
                              sizeof(marshal::Number) * slots.numbers.size() +
                              sizeof(uint64_t) * slots.outputs.size();
  bytes_ += sizeof(ProgramStep) + slot_bytes;
  ProgramStep step;
  step.call = std::move(call);
  step.slots = slots;
  steps_.push_back(std::move(step));
}

void Program::finish() {
  for (uint32_t number = 0; number < storages_.size(); ++number) {
    if (is_temporary(number) && last_step_[number] != 0)
      steps_[last_step_[number] - 1].last_used.push_back(number);
    if (!is_temporary(number) && is_written_[number])
      written_.push_back(number);
  }
  last_step_ = {};
  is_written_ = {};
}

void Program::rename(std::span<const wire::ChangedStorage> changed) {
  for (const wire::ChangedStorage& each : changed) {
    check_number(each.number);
    if (is_temporary(each.number))
      throw ProtocolError("a temporary of a program has no name");
    storages_[each.number].name = each.name;
  }
}

// --- ProgramStorages

void ProgramStorages::begin(const Program& program, Origin run) {
  run_ = run;
  entries_.clear();
  temporaries_.clear();
  temporaries_.resize(program.storages().size());
  for (const wire::ProgramStorage& storage : program.storages())
    entries_.push_back(storage.name == 0 ? nullptr : &table_.find(storage.name));
}

Entry& ProgramStorages::at(const Program& program, uint64_t number) {
  Entry*& place = entries_[number];
  if (place == nullptr) {
    const wire::ProgramStorage& storage = program.storages()[number];
    temporaries_[number] = table_.make_temporary(storage.nbytes, devices_.device(storage.device),
                                                 storage.device, run_);
    place = temporaries_[number].get();
  }
  return *place;
}

void ProgramStorages::free(uint64_t number) {
  if (temporaries_[number] == nullptr)
    return;
  entries_[number] = nullptr;
  temporaries_[number].reset();
}

void ProgramStorages::end() {
  temporaries_.clear();
  entries_.clear();
}

}  // namespace torch_remote::server
