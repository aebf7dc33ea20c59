#include "server/executor/programs.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {

void Programs::check_new(const Program& program) const {
  if (programs_.contains(program.name()))
    throw ProtocolError("the program " + std::to_string(program.name()) + " is there already");
  wire::check_limit("programs of a session", programs_.size() + 1, wire::kMaxPrograms);
  wire::check_limit("bytes of programs", bytes_ + program.bytes(), most_bytes_);
}

void Programs::add(Program program) {
  check_new(program);
  bytes_ += program.bytes();
  const uint64_t name = program.name();
  programs_.emplace(name, std::move(program));
}

Program& Programs::find(uint64_t name) {
  const auto found = programs_.find(name);
  if (found == programs_.end())
    throw ProtocolError("there is no program " + std::to_string(name));
  return found->second;
}

void Programs::drop(uint64_t name) {
  bytes_ -= find(name).bytes();
  programs_.erase(name);
}

}  // namespace torch_remote::server
