#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

#include "marshal/plan.h"
#include "wire/signature.h"

namespace torch_remote::server {

// An operator that the session's client has introduced.
struct Operator {
  std::string name;                           // "aten::add.Tensor"
  std::optional<c10::OperatorHandle> handle;  // none: it cannot be called
  marshal::Callee callee;
  bool is_seeded = false;  // draws from a generator
};

Operator find_operator(wire::Introduction introduction);

// Why clients may not call this operator; empty when they may. Promise 4 and 8 of the server: no
// files, no raw memory, no storages, nothing but PyTorch's own operators.
std::string refuse_operator(const std::string& name);

// SHA-256 over the sorted schemas of all operators of `aten`. Equal on both ends: no call will be
// refused for an operator or argument that one of them lacks. Worked out once.
const std::array<std::byte, 32>& operators_digest();

}  // namespace torch_remote::server
