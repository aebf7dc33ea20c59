#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "marshal/plan.h"
#include "server/operators/argument_checks.h"
#include "wire/operators.h"
#include "wire/signature.h"

namespace torch_remote::server {

// Bytes of a name with its overload. PyTorch's longest has some 70; errors repeat it.
constexpr size_t kMaxOperatorName = 256;

// An operator that the client has introduced.
struct Operator {
  std::string name;                           // "aten::add.Tensor"
  std::optional<c10::OperatorHandle> handle;  // none: it cannot be called
  marshal::Callee callee;
  std::unique_ptr<const c10::FunctionSchema> claimed;  // callee.claimed points to it
  bool is_seeded = false;                              // draws from a generator
  bool shares_outputs = false;                         // its results are views of one buffer
  ArgumentCheck check = nullptr;                       // of values that its kernel trusts
  size_t time_row = 0;                                 // in the call log's table of times
};

// Whether clients may call this `aten` operator ("aten::add.Tensor"): by operator_list.h alone
// (promises 4 and 8 of the server).
bool may_be_called(std::string_view name);
// Why clients may not call it; empty if they may. `operation`: null if this torch does not have it.
std::string refuse_operator(std::string_view name, const c10::OperatorHandle* operation);

// The operators of one version of torch as text: a line "# torch 2.11.0", then one schema a line
// (tools/record_schemas.py).
struct SchemaFile {
  std::string torch_version;
  std::vector<std::string> schemas;
};

// Throws std::invalid_argument with a message for the user.
SchemaFile read_schema_file(const std::string& path);

// The operators that clients may call: those of PyTorch's own that the list allows, and all of the
// server's libraries. A look-up is made once for each operator that a session introduces.
// Immutable.
class OperatorTable {
 public:
  // Without libraries.
  OperatorTable() = default;
  // `of_libraries` comes from load_libraries(). `claimed`: imitate the torch version of that file,
  // and refuse operators and arguments that it lacks. For tests of two versions on one machine.
  OperatorTable(const std::vector<c10::OperatorName>& of_libraries,
                std::optional<SchemaFile> claimed);
  OperatorTable(const OperatorTable&) = delete;
  OperatorTable& operator=(const OperatorTable&) = delete;

  Operator find(wire::Introduction introduction) const;
  // For a client that asks before it first calls an operator.
  wire::OperatorAnswer describe(const wire::OperatorQuery& query) const;

  // Of the `aten` operators. If the client's is equal, it need not ask about any of them.
  wire::Digest digest() const;
  // Of all operators that may be called.
  std::vector<uint64_t> fingerprints() const;
  std::string torch_version() const;

 private:
  // Sets `reason` if clients may not call it, else returns the handle.
  std::optional<c10::OperatorHandle> look_up(const c10::OperatorName& name,
                                             std::string& reason) const;
  // Null: no other version is claimed.
  std::unique_ptr<const c10::FunctionSchema> claimed_schema(const std::string& name) const;

  std::unordered_set<c10::OperatorName> of_libraries_;
  std::optional<SchemaFile> claimed_;
  std::unordered_map<std::string_view, std::string_view> claimed_by_name_;  // into claimed_
};

}  // namespace torch_remote::server
