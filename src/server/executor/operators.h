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
#include "server/executor/schema_file.h"
#include "wire/operators.h"
#include "wire/signature.h"

namespace torch_remote::server {

// An operator that the session's client has introduced.
struct Operator {
  std::string name;                           // "aten::add.Tensor"
  std::optional<c10::OperatorHandle> handle;  // none: it cannot be called
  marshal::Callee callee;
  std::unique_ptr<const c10::FunctionSchema> claimed;  // what callee.claimed points to
  bool is_seeded = false;                              // draws from a generator
  bool shares_outputs = false;                         // its results are views of one buffer
};

// Why clients may not call this operator of `aten`; empty when they may. Promise 4 and 8 of the server: no files, no
// raw memory, no storages.
std::string refuse_operator(std::string_view name);

// What the clients of a session may call: PyTorch's own operators, and those of the libraries that the server was
// started with. Immutable.
class OperatorTable {
 public:
  // PyTorch's own operators and nothing else.
  OperatorTable() = default;
  // `of_libraries`: what load_libraries() gave. `claimed`: the server says that it has that version's operators and
  // lives by it: what is not in the file is refused, arguments too. For tests of two versions on one machine.
  OperatorTable(const std::vector<c10::OperatorName>& of_libraries,
                std::optional<SchemaFile> claimed);
  OperatorTable(const OperatorTable&) = delete;
  OperatorTable& operator=(const OperatorTable&) = delete;

  Operator find(wire::Introduction introduction) const;
  // What a client wants to know before its first call of an operator that it has otherwise.
  wire::OperatorAnswer describe(const wire::OperatorQuery& query) const;

  // Of the operators of `aten`. Equal on both ends: no call will be refused for an operator or argument that one of
  // them lacks.
  wire::Digest digest() const;
  // Of everything that may be called.
  std::vector<uint64_t> fingerprints() const;
  std::string torch_version() const;

 private:
  // Why it may not be called, else its handle.
  std::optional<c10::OperatorHandle> look_up(const c10::OperatorName& name,
                                             std::string& reason) const;
  // Null: nothing else is claimed than what is there.
  std::unique_ptr<const c10::FunctionSchema> claimed_schema(const std::string& name) const;

  std::unordered_set<c10::OperatorName> of_libraries_;
  std::optional<SchemaFile> claimed_;
  std::unordered_map<std::string_view, std::string_view> claimed_by_name_;  // into claimed_
};

}  // namespace torch_remote::server
