#pragma once

#include <string_view>

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <c10/util/ArrayRef.h>

// torch.use_deterministic_algorithms(True): a kernel without a deterministic form raises, or warns.
// The server's kernels do so too. The client does it first, because a call does not wait for its
// outcome, and leaves out what the server's kernels warn of.
namespace torch_remote::client {

using Concerns = bool (*)(c10::ArrayRef<c10::IValue> arguments, bool is_cuda);

struct Alert {
  const char* operation;  // as in a row of marshal/operator_table.h
  const char* caller;     // how PyTorch's kernel names itself
  Concerns concerns;      // whether the server's kernel alerts in a call with these arguments
};

// Null for the operators that never alert.
const Alert* find_alert(const c10::OperatorName& operation);

// Whether the text of a warning is that of an alert in the table.
bool is_alert(std::string_view text);

}  // namespace torch_remote::client
