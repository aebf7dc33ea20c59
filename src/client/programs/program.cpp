#include "client/programs/program.h"

#include <algorithm>
#include <utility>

#include <ATen/record_function.h>

#include "client/memory/memory_figures.h"
#include "client/operators/operator.h"
#include "client/process/process.h"
#include "client/process/recording.h"
#include "client/process/records.h"
#include "client/session/submission.h"

namespace torch_remote::client {
namespace {

// Announcing the signatures of one program may make the table give up others of it, if it is nearly
// full: once more then finds place for all, unless the program is too large.
constexpr int kAttempts = 2;

bool knows_programs(Session& session) {
  return (session.welcome().capabilities & wire::kProgramsCapability) != 0;
}

}  // namespace

Program::Program(Recorded recorded, Without without)
    : recorded_(std::move(recorded)),
      shifts_(recorded_.storages.size(), 0),
      name_(recorded_.session->order().new_names().program()),
      calls_(static_cast<uint64_t>(std::ranges::count_if(
          recorded_.steps, [](const ProgramStep& step) { return step.signature != nullptr; }))) {
  if (!knows_programs(*recorded_.session)) {
    TORCH_CHECK_NOT_IMPLEMENTED(without == Without::kCallByCall, "a graph on ",
                                recorded_.session->describe(0),
                                ": this server does not run programs; update it");
    call_by_call_ = std::make_unique<CallByCall>(recorded_);
  }
  for (const CallSite& site : recorded_.sites)
    if (std::ranges::find(devices_, site.device) == devices_.end())
      devices_.push_back(site.device);
  recorded_.session->order().program_sites().add(name_, recorded_.sites);
}

Program::~Program() {
  if (in_forked_child() || is_exiting())
    return;
  Session& session = *recorded_.session;
  session.order().program_sites().retire(name_);
  if (session.link().is_lost())
    return;
  try {
    Submission at(session, IfLost::kWrite);
    if (at.programs().remove(name_))
      wire::encode_drop(at.writer(), name_);
  } catch (const std::exception&) {
    // There is no memory for the message: the server drops the program when it has too many.
  }
}

void Program::prepare_run() {
  if (in_forked_child())
    refuse_in_forked_child();
  check_not_recording("the replay of a graph");
  recorded_.session->begin_call();
}

void Program::run(std::span<const NamedStorage> changed) {
  RECORD_FUNCTION("torch_remote::replay", {});
  Session& session = *recorded_.session;
  if (call_by_call_ == nullptr) {
    submit_run(changed);
  } else {
    Submission at(session);
    call_by_call_->submit(at, recorded_);
  }
  if (is_blocking() || may_not_fit(session, recorded_.device))
    session.synchronize({.is_failed_call = true});
}

void Program::submit_run(std::span<const NamedStorage> changed) {
  const CallSite site{current_line(), recorded_.device, kRunSite};
  Submission at(*recorded_.session);
  for (const NamedStorage& storage : changed)
    if (!storage.is_made)
      at.announce(*storage.record, site);
  if (!at.programs().use(name_)) {
    change(changed);  // PROGRAM has their names
    send(at, site);
    shifts_.assign(recorded_.storages.size(), 0);
  }
  const wire::Run run{name_, change(changed)};
  for (const uint8_t device : devices_)
    at.use_current_stream(device);
  const auto [call, thread] = at.number_call(site);
  encode(at.writer(), run);
  recorded_.session->order().program_sites().note_run(call, name_);
  for (const auto& storages : {std::span<const NamedStorage>(recorded_.named), changed})
    for (const NamedStorage& storage : storages)
      if (storage.is_made)
        storage.record->note_made(call, thread);
}

std::vector<std::string> Program::describe_calls() const {
  std::vector<std::string> calls;
  for (size_t i = 0; i < recorded_.steps.size(); ++i) {
    const SignaturePtr& signature = recorded_.steps[i].signature;
    if (signature == nullptr)
      continue;
    const std::string line = name_line(recorded_.sites[i].line);
    calls.push_back(signature->operation->name + (line.empty() ? "" : ", ") + line);
  }
  return calls;
}

std::vector<wire::ChangedStorage> Program::change(std::span<const NamedStorage> changed) {
  std::vector<wire::ChangedStorage> names;
  for (const NamedStorage& storage : changed) {
    uint64_t& name = recorded_.storages[storage.number].name;
    int64_t& shift = shifts_[storage.number];
    if (name == storage.record->name && shift == storage.shift)
      continue;
    name = storage.record->name;
    shift = storage.shift;
    names.push_back({storage.number, name, shift});
  }
  return names;
}

SentPrograms::Size Program::size() const {
  SentPrograms::Size size{recorded_.steps.size(),
                          recorded_.slots.size() + 2 * recorded_.storages.size()};
  for (const ProgramStep& step : recorded_.steps)
    size.bytes += step.signature == nullptr ? 0 : step.signature->key.size();
  return size;
}

void Program::send(Submission& at, CallSite site) {
  announce_signatures(at);
  for (const NamedStorage& storage : recorded_.named)
    at.announce(*storage.record, site);
  for (const uint64_t other : at.programs().add(name_, size()))
    wire::encode_drop(at.writer(), other);
  const auto slots = recorded_.slots.view();
  wire::encode_program(
      at.writer(), name_, recorded_.storages, recorded_.steps.size(), [&](wire::NameState&) {
        for (const ProgramStep& step : recorded_.steps) {
          if (step.signature == nullptr)
            wire::encode_step(at.writer(), step.settings);
          else
            wire::encode_step(at.writer(), step.signature->index, [&] {
              wire::append_slots(at.writer(), slots.subspan(step.begin, step.end - step.begin));
            });
        }
      });
}

void Program::announce_signatures(Submission& at) {
  const auto is_announced = [](const ProgramStep& step) {
    return step.signature == nullptr || step.signature->announced;
  };
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (ProgramStep& step : recorded_.steps) {
      if (is_announced(step))
        continue;
      step.signature = at.signatures().add_known(step.signature);
      if (!step.signature->announced)
        at.announce(*step.signature, step.defaults);
    }
    if (std::ranges::all_of(recorded_.steps, is_announced))
      return;
  }
  TORCH_CHECK(false, "a graph of ", calls_,
              " calls is too large: the server cannot keep what describes its calls all at once");
}

}  // namespace torch_remote::client
