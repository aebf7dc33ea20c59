#pragma once

#include <string>
#include <vector>

namespace torch_remote::client {

// What a call of one operator of `aten` on a remote tensor does, for docs/operators.md. Read from
// the records that registration and calls go by.
struct OperatorFacts {
  std::string name;       // "aten::add.Tensor"
  std::string route;      // view, kernel, branch, structured, composed, sent, refused
  std::string inference;  // of what is sent: OperatorInfo::ways
  std::string waits;      // never, first (call of a signature), always, parts (as its parts do)
  std::string reason;     // why it is special, if it is
};

// Every operator of `aten` that takes a tensor or makes one. After register_backend().
std::vector<OperatorFacts> operator_facts();

}  // namespace torch_remote::client
