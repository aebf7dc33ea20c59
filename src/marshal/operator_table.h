#pragma once

// What is special about operators of `aten`, and why: the one table of such facts, for client and
// server. Registration, calls, docs/operators.md and the server read it. Code for an operator
// stands elsewhere, under the operator's name: kernels in client/kernels (table.cpp), shape
// functions in client/shapes, checks that raise in client/operators/alerts.cpp. Which operators the
// server runs is a list of its own (server/operators).

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <ATen/core/operator_name.h>
#include <c10/util/ArrayRef.h>

namespace torch_remote::marshal {

// What happens to a call on the client.
enum class Route : uint8_t {
  kUsual,        // in a row: decided by PyTorch's dispatch table (route.h)
  kSent,         // one call to the server, even if PyTorch has a composition
  kView,         // changes metadata on the client only
  kKernel,       // a kernel of ours
  kBranch,       // our kernel, which composes it as PyTorch does on the server's kind of device
  kStructured,   // PyTorch computes the result's shape on the client and calls the `out=` form
  kComposed,     // PyTorch's composition runs on the client, even if it could be one call
  kRefused,      // NotImplementedError, if it returns a tensor
  kReadsMemory,  // NotImplementedError: its composition reads memory, which is not on the client
};

constexpr bool is_refused(Route route) {
  return route == Route::kRefused || route == Route::kReadsMemory;
}

// How a call is sent, waited for and run. A row may combine several.
enum Trait : uint32_t {
  kPlain = 0,
  kDependsOnData = 1,      // the server tells its outputs at each call
  kAsksServer = 2,         // the server tells its outputs once for each signature, not Meta
  kChecksValues = 4,       // its kernel raises for some values: each call is waited for
  kWantsOneDtype = 8,      // its kernel refuses tensors of different dtypes
  kTakesHostIndices = 16,  // index tensors may be on the CPU
  kShapedByNumbers = 32,   // its outputs depend on numbers, which are part of the key
  kFillsAnyShape = 64,     // an `out=` with the right number of elements is not resized
  // its result depends on the grad mode, which the server must know
  kLooksAtGradMode = 128,
  kReads = 256,            // our kernel, which waits for bytes from the server
  kSpansDevices = 512,     // takes tensors on several devices of one server
  kMayAlert = 1024,        // its kernel may have no deterministic form: client/operators/alerts.h
  kOverwritesSelf = 2048,  // does not read self: what self was may be missing
  kSharesOutputs = 4096,   // its results are views of one buffer
  // PyTorch's kernels for nested and sparse tensors of the CPU, which run on the client because
  // they only handle the parts of their tensors, by other operators: they work on any device.
  kHandlesNestedParts = 8192,
  kHandlesCooParts = 16384,
  kHandlesCompressedParts = 32768,
  kAddsSparse = 65536,  // its result is self if another argument is sparse, as optimizers call it
};

using Traits = uint32_t;

// How large a result can be that only the server knows: client/call/results.h.
enum class ResultBound : uint8_t {
  kNone,          // as large as the server's device allows
  kNonzero,       // the indices of all elements
  kMaskedSelect,  // all elements, broadcast
  kUnique,        // all elements, or all slices along a dimension
  kIndex,         // what an index or a mask can pick
  kToSparse,      // all elements, with their indices
  kCounts,        // one dimension; the values of the arguments decide how long
  kRepeats,       // the same, of self's dtype
};

struct OperatorRow {
  Route route;
  Traits traits;
  const char* reason;  // for docs/operators.md and explain(); empty: it does not concern users
  // As PyTorch writes them; "max" is the overload without a name, "roll.*" all overloads.
  std::initializer_list<const char*> operators;
  ResultBound bound = ResultBound::kNone;
};

c10::ArrayRef<OperatorRow> operator_rows();

// "roll." for aten::roll, whose overload has no name.
std::string row_key(const c10::OperatorName& operation);
// Whether a name in a row means the operator with this key.
bool matches(std::string_view name, std::string_view key);

// Everything that the rows say about an operator.
struct OperatorRules {
  Route route = Route::kUsual;
  Traits traits = kPlain;
  ResultBound bound = ResultBound::kNone;
  std::string reason;  // a line for each row that has one

  bool has(Traits some) const { return (traits & some) != 0; }
};

// Looks in the rows, so keep the answer. Thread-safe.
OperatorRules rules_of(const c10::OperatorName& operation);

}  // namespace torch_remote::marshal
