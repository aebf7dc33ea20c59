#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/hash.h"
#include "server/executor/program.h"

namespace torch_remote::server {

// Limit for the memory of a session's programs, in the server's form, without the plans of their
// calls (kMaxSignatureMemory). A client drops programs before it gets there
// (client/session/sent_programs.h).
constexpr uint64_t kMaxProgramMemory = uint64_t{2} << 30;

// The programs of a session, by name. Their methods throw ProtocolError. Confined to the executor
// thread.
class Programs {
 public:
  explicit Programs(uint64_t most_bytes = kMaxProgramMemory) : most_bytes_(most_bytes) {}

  // Whether this one has a name of its own, and fits with the others. Call for one that is being
  // made too: a step of a few bytes can take much memory.
  void check_new(const Program& program) const;
  void add(Program program);
  Program& find(uint64_t name);
  void drop(uint64_t name);

 private:
  const uint64_t most_bytes_;
  uint64_t bytes_ = 0;  // of programs_
  std::unordered_map<uint64_t, Program, NameHash> programs_;
};

}  // namespace torch_remote::server
