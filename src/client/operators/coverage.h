#pragma once

#include <string>
#include <vector>

namespace torch_remote::client {

// What a call of one `aten` operator does on a remote tensor, for docs/operators.md. Read from the
// tables that registration and calls use.
struct OperatorFacts {
  std::string name;       // "aten::add.Tensor"
  std::string route;      // view, kernel, branch, structured, composed, sent, refused
  std::string inference;  // of what is sent: OperatorInfo::sources
  std::string waits;      // never, first (call of a signature), always, parts (as its parts do)
  std::string reason;     // why it is special, if it is
};

// All `aten` operators that take or make a tensor. Call it after register_backend().
std::vector<OperatorFacts> operator_facts();

}  // namespace torch_remote::client
