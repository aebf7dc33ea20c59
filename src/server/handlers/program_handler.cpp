// PROGRAM, RUN and DROP: Note [Programs] in wire/program.h.
#include <unordered_map>

#include "base/hash.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/program.h"

namespace torch_remote::server {
namespace {

// Limit for the memory of a session's programs, in the server's form, without the plans of their
// calls (kMaxSignatureMemory). A client drops programs before it gets there
// (client/session/sent_programs.h).
constexpr uint64_t kMaxProgramMemory = uint64_t{2} << 30;

class ProgramHandler : public Handler {
 public:
  ProgramHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&ProgramHandler::on_program>(wire::Tag::kProgram, *this);
    table.add<&ProgramHandler::on_run>(wire::Tag::kRun, *this);
    table.add<&ProgramHandler::on_drop>(wire::Tag::kDrop, *this);
  }

 private:
  void on_program(wire::Reader& reader);
  void on_run(wire::Reader& reader);
  void on_drop(wire::Reader& reader);
  Program& find(uint64_t name);

  SessionState& session_;
  std::unordered_map<uint64_t, Program, NameHash> programs_;
  uint64_t bytes_ = 0;  // of programs_
};

void ProgramHandler::on_program(wire::Reader& reader) {
  wire::ProgramHead head = wire::decode_program_head(reader);
  const uint64_t steps = head.steps;
  Program program(std::move(head), session_.devices.count());
  if (programs_.contains(program.name()))
    throw ProtocolError("the program " + std::to_string(program.name()) + " is there already");
  wire::check_limit("programs of a session", programs_.size() + 1, wire::kMaxPrograms);
  wire::NameState numbers;
  for (uint64_t i = 0; i < steps; ++i) {
    if (const uint64_t slot = wire::decode_step(reader)) {
      std::shared_ptr<const CallPlan> call = session_.plans.shared(slot - 1);
      marshal::read_slots(call->plan, reader, numbers, session_.slots);
      program.add_call(std::move(call), session_.slots);
    } else {
      program.add_settings(wire::decode_context(reader));
    }
    wire::check_limit("bytes of programs", bytes_ + program.bytes(), kMaxProgramMemory);
  }
  program.finish();
  bytes_ += program.bytes();
  const uint64_t name = program.name();
  programs_.emplace(name, std::move(program));
}

Program& ProgramHandler::find(uint64_t name) {
  const auto found = programs_.find(name);
  if (found == programs_.end())
    throw ProtocolError("there is no program " + std::to_string(name));
  return found->second;
}

void ProgramHandler::on_run(wire::Reader& reader) {
  const wire::Run run = wire::decode_run(reader);
  Program& program = find(run.program);
  program.change(run.changed);
  session_.executor.run(program);
}

void ProgramHandler::on_drop(wire::Reader& reader) {
  const uint64_t name = wire::decode_drop(reader);
  bytes_ -= find(name).bytes();
  programs_.erase(name);
}

}  // namespace

std::unique_ptr<Handler> make_program_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<ProgramHandler>(session, table);
}

}  // namespace torch_remote::server
