#include "server/executor/program.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// What each storage of a program may take in the lists of a program and of its steps.
constexpr uint64_t kStorageBytes =
    sizeof(wire::ProgramStorage) + sizeof(int64_t) + sizeof(Program::Made) + 3 * sizeof(uint32_t);

}  // namespace

Program::Program(wire::ProgramHead head, unsigned devices)
    : name_(head.program),
      storages_(std::move(head.storages)),
      shifts_(storages_.size(), 0),
      bytes_(sizeof(Program) + storages_.size() * kStorageBytes),
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
  const uint64_t* number = slots.outputs.data();
  add_outputs(plan.outputs, plan.device, number);
  const uint64_t slot_bytes = 2 * sizeof(uint64_t) * plan.tensors.size() +
                              sizeof(marshal::Number) * slots.numbers.size() +
                              sizeof(uint64_t) * (slots.generators.size() + slots.outputs.size());
  bytes_ += sizeof(ProgramStep) + slot_bytes;
  ProgramStep step;
  step.call = std::move(call);
  step.slots = slots;
  steps_.push_back(std::move(step));
}

void Program::add_outputs(const std::vector<wire::Output>& outputs, uint8_t device,
                          const uint64_t*& number) {
  for (const wire::Output& output : outputs) {
    add_outputs(output.items, device, number);
    if (output.kind != wire::OutputKind::kFresh)
      continue;
    check_number(*number);
    if (last_step_[*number] != 0)
      throw ProtocolError("a step makes a storage that was mentioned before");
    mention(*number);
    if (!is_temporary(*number))
      made_.push_back({static_cast<uint32_t>(*number), device, wire::extent_bytes(output.spec)});
    ++number;
  }
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

void Program::change(std::span<const wire::ChangedStorage> changed) {
  for (const wire::ChangedStorage& each : changed) {
    check_number(each.number);
    if (is_temporary(each.number))
      throw ProtocolError("a temporary of a program has no name");
    storages_[each.number].name = each.name;
    if (each.shift != shifts_[each.number])
      shift(each.number, each.shift);
  }
}

void Program::shift(uint64_t number, int64_t bytes) {
  int64_t more = 0;
  if (__builtin_sub_overflow(bytes, shifts_[number], &more))
    throw ProtocolError("a shift is out of range");
  for (ProgramStep& step : steps_) {
    if (step.call == nullptr)
      continue;
    const std::vector<marshal::TensorRecipe>& views = step.call->plan.tensors;
    for (size_t i = 0; i < views.size(); ++i) {
      if (step.slots.storages[views[i].storage] != number)
        continue;
      const auto size = static_cast<int64_t>(c10::elementSize(views[i].dtype));
      const auto before = static_cast<int64_t>(step.slots.offsets[i]);
      int64_t after = 0;
      if (more % size != 0 || __builtin_add_overflow(before, more / size, &after) || after < 0)
        throw ProtocolError("a shift puts a view where no view can begin");
      step.slots.offsets[i] = static_cast<uint64_t>(after);
    }
  }
  shifts_[number] = bytes;
}

// --- ProgramStorages

void ProgramStorages::begin(const Program& program, Origin run) {
  run_ = run;
  entries_.clear();
  temporaries_.clear();
  temporaries_.resize(program.storages().size());
  for (const Program::Made& made : program.made()) {
    const uint64_t name = program.storages()[made.number].name;
    if (!table_.contains(name))
      table_.make(name, made.nbytes, devices_.device(made.device), made.device, run);
  }
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
