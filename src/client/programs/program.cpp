#include "client/programs/program.h"

#include <algorithm>
#include <utility>

#include <ATen/record_function.h>

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

StorageRecord& record_in(const c10::Storage& storage) {
  return *static_cast<StorageRecord*>(storage.data_ptr().get_context());
}

void check_knows_programs(Session& session) {
  TORCH_CHECK_NOT_IMPLEMENTED((session.welcome().capabilities & wire::kProgramsCapability) != 0,
                              "a graph on ", session.describe(0),
                              ": this server does not run programs; update it, or make the calls "
                              "one by one, without a graph");
}

}  // namespace

Program::Program(Recorded recorded)
    : recorded_(std::move(recorded)),
      name_(recorded_.session->order().new_names().program()),
      calls_(static_cast<uint64_t>(std::ranges::count_if(
          recorded_.steps, [](const ProgramStep& step) { return step.signature != nullptr; }))) {
  check_knows_programs(*recorded_.session);
  recorded_.session->order().program_sites().add(name_, recorded_.sites);
}

Program::~Program() {
  if (in_forked_child() || is_exiting())
    return;
  Session& session = *recorded_.session;
  session.order().program_sites().retire(name_);
  if (session.link().is_lost())
    return;
  Submission at(session, IfLost::kWrite);
  if (at.programs().remove(name_))
    wire::encode_drop(at.writer(), name_);
}

void Program::run() {
  check_not_recording("the replay of a graph");
  RECORD_FUNCTION("torch_remote::replay", {});
  Session& session = *recorded_.session;
  session.begin_call();
  const CallSite site{current_line(), recorded_.device, kRunSite};
  {
    Submission at(session);
    if (!at.programs().use(name_))
      send(at, site);
    const auto [call, thread] = at.number_call(site);
    encode(at.writer(), wire::Run{name_, {}});
    session.order().program_sites().note_run(call, name_);
    for (StorageRecord* const record : recorded_.made)
      record->note_made(call, thread);
  }
  if (is_blocking())
    session.synchronize({.is_failed_call = true});
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

SentPrograms::Size Program::size() const {
  SentPrograms::Size size{recorded_.steps.size(),
                          recorded_.slots.size() + 2 * recorded_.storages.size()};
  for (const ProgramStep& step : recorded_.steps)
    size.bytes += step.signature == nullptr ? 0 : step.signature->key.size();
  return size;
}

void Program::send(Submission& at, CallSite site) {
  announce_signatures(at);
  for (const c10::Storage& storage : recorded_.held)
    at.announce(record_in(storage), site);
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
