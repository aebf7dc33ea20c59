#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "draw.h"
#include "schema_values.h"
#include "wire/figures.h"
#include "wire/group.h"
#include "wire/messages.h"
#include "wire/program.h"
#include "wire/streams.h"

namespace torch_remote::fuzz {

// Where a script's frames and chunks go.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void frame(std::span<const std::byte> payload) = 0;
  virtual void chunk(uint64_t lane, uint64_t offset, std::span<const std::byte> bytes,
                     bool last) = 0;
};

// A client that keeps track of its storages, so that most messages are valid: it makes, views,
// writes, frees and reuses storages, and replays signatures after storages have shrunk. Each byte
// of the input chooses a message or a part of one; some are hostile: foreign or freed names, 0,
// overflowing extents, forbidden operators.
class Script {
 public:
  // `callable`: the operators that it calls.
  Script(Draw choices, Receiver& receiver,
         const std::vector<c10::OperatorHandle>& callable = all_operators())
      : draw_(choices), receiver_(receiver), callable_(callable) {}

  void run();

 private:
  void step();
  void resize();
  void upload();
  void begin_upload();
  void send_chunk();
  void signature();
  void call();
  void query_call();
  void read();
  void free();
  void query();
  void group();
  // script_files.cpp
  void file();
  void file_query();
  void generator();
  void stream();
  void context();
  void thread();
  void program();
  void run_program();
  void drop_program();
  void go_on();
  void cancel();
  void end_frame();

  wire::Signature decode(const wire::Writer& body, const Naming& naming);

  // Begins a message, which ends where the next one begins.
  void tag(wire::Tag tag);
  void end_message();

  uint64_t old_name();
  uint64_t new_name();
  const wire::Signature* choose_signature(bool outputs_known, uint64_t& index);

  struct Lane {
    uint64_t upload;
    uint64_t length;
    uint64_t sent;
  };

  Draw draw_;
  Receiver& receiver_;
  const std::vector<c10::OperatorHandle>& callable_;
  wire::Writer writer_;   // of the frame that is being written
  size_t length_at_ = 0;  // of the message that has not ended; 0: none
  wire::NameState names_;
  std::vector<uint64_t> live_;
  std::vector<uint64_t> freed_;
  uint64_t next_name_ = 1;
  uint64_t next_request_ = 1;
  std::vector<c10::OperatorHandle> operators_;  // as introduced
  std::vector<std::pair<uint64_t, wire::Signature>> signatures_;
  std::vector<Lane> lanes_;
  uint64_t programs_ = 0;  // how many were sent; they have the names from 1 on
};

}  // namespace torch_remote::fuzz
