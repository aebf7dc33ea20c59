#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/handlers/handler_table.h"
#include "server/handlers/session_state.h"
#include "wire/messages.h"

namespace torch_remote::server {

// All state of a session, and the loop over the messages that change it. Confined to the executor
// thread. What a message does is in a handler of its family: all_handlers.h.
class Interpreter {
 public:
  Interpreter(const Devices& devices, const OperatorTable& operators, Uploads& uploads,
              Replies& replies, InterpreterOptions options = {});
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Applies the messages of one frame in order. Throws ProtocolError, which ends the session, on
  // bytes that our client never sends.
  void apply(std::span<const std::byte> payload);

  // Calls up to this number that have not begun are dropped. From any thread.
  void cancel_to(uint64_t call) { state_.executor.cancel_to(call); }

  // No link or process group, nor a thread of one, is left afterwards.
  void close_links();

  // Between frames: copies what has arrived of uploads to where it belongs.
  void write_arrived() { state_.storages.write_arrived(); }

  wire::Counters counters() { return state_.counters(); }

  // What runs, for a warning of its kernel.
  wire::Warning running() const { return state_.executor.running(); }

  uint64_t failures() const { return state_.executor.failures(); }

  // How many READ and QUERY messages were answered.
  uint64_t answers() const { return state_.answers; }

 private:
  void on_query(wire::Reader& reader);
  // CANCEL was heard when it was received: cancel_to().
  void on_cancel(wire::Reader& reader);
  // Tells the client how far the frame is, if it was told nothing for a while.
  void tell_progress();
  // For a message of a newer client.
  void skip(wire::Tag tag);

  SessionState state_;
  HandlerTable table_;
  std::vector<std::unique_ptr<Handler>> handlers_;
  uint64_t skipped_ = 0;  // messages with an unknown tag
  uint64_t told_at_ = 0;  // in ms: when the frame began, or the client was told of progress
};

}  // namespace torch_remote::server
