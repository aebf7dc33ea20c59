#pragma once

#include <string>
#include <vector>

namespace torch_remote::client {

// What a call of one operator of `aten` on a remote tensor does, for docs/operators.md. Read from PyTorch's dispatch table and
// from OperatorInfo, which calls go by, so that it cannot say anything else than what happens.
struct OperatorFacts {
  std::string name;   // "aten::add.Tensor"
  std::string route;  // view, kernel, branch, structured, composed, sent, refused
  std::string
      inference;  // of what is sent: shape, meta, arguments, python, server; "shape, server" where the first may decline
  std::string waits;  // never, first (call of a signature), always, parts (as what it is made of)
};

// Every operator of `aten` that takes a tensor or makes one. After register_backend().
std::vector<OperatorFacts> operator_facts();

}  // namespace torch_remote::client
