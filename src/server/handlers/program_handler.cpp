// PROGRAM, RUN and DROP: Note [Programs] in wire/program.h.
#include "server/executor/programs.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/program.h"

namespace torch_remote::server {
namespace {

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

  SessionState& session_;
  Programs programs_;
};

void ProgramHandler::on_program(wire::Reader& reader) {
  wire::ProgramHead head = wire::decode_program_head(reader);
  const uint64_t steps = head.steps;
  Program program(std::move(head), session_.devices.count());
  programs_.check_new(program);
  wire::NameState numbers;
  for (uint64_t i = 0; i < steps; ++i) {
    if (const uint64_t slot = wire::decode_step(reader)) {
      std::shared_ptr<const CallPlan> call = session_.plans.shared(slot - 1);
      marshal::read_slots(call->plan, reader, numbers, session_.slots);
      program.add_call(std::move(call), session_.slots);
    } else {
      program.add_settings(wire::decode_context(reader));
    }
    programs_.check_new(program);
  }
  program.finish();
  programs_.add(std::move(program));
}

void ProgramHandler::on_run(wire::Reader& reader) {
  const wire::Run run = wire::decode_run(reader);
  Program& program = programs_.find(run.program);
  program.change(run.changed);
  session_.executor.run(program);
}

void ProgramHandler::on_drop(wire::Reader& reader) {
  programs_.drop(wire::decode_drop(reader));
}

}  // namespace

std::unique_ptr<Handler> make_program_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<ProgramHandler>(session, table);
}

}  // namespace torch_remote::server
