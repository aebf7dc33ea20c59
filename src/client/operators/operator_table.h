#pragma once

// What is special about `aten` operators, and why. Registration, OperatorInfo and docs/operators.md
// read these rows. Operators with kernels of ours are in kernels/table.cpp.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <ATen/core/operator_name.h>
#include <c10/util/ArrayRef.h>

namespace torch {
class Library;
}

namespace torch_remote::client {

// What happens to a call.
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

// How a call is sent and waited for. A row may combine several.
using Traits = uint16_t;
constexpr Traits kPlain = 0;
constexpr Traits kDependsOnData = 1;  // the server tells its outputs at each call
constexpr Traits kAsksServer = 2;  // the server tells its outputs once for each signature, not Meta
constexpr Traits kChecksValues = 4;   // its kernel raises for some values: each call is waited for
constexpr Traits kWantsOneDtype = 8;  // its kernel refuses tensors of different dtypes
constexpr Traits kTakesHostIndices = 16;  // index tensors may be on the CPU
constexpr Traits kShapedByNumbers = 32;  // its outputs depend on numbers, which are part of the key
constexpr Traits kFillsAnyShape = 64;  // an `out=` with the right number of elements is not resized
// its result depends on the grad mode, which the server must know
constexpr Traits kLooksAtGradMode = 128;
constexpr Traits kReads = 256;         // our kernel, which waits for bytes from the server
constexpr Traits kSpansDevices = 512;  // takes tensors on several devices of one server
constexpr Traits kMayAlert = 1024;     // its kernel may have no deterministic form: alerts.h

// Registers a kernel of ours under the operator's name.
using Kernel = void (*)(torch::Library& library, const char* name);

struct NamedOperator {
  constexpr NamedOperator(const char* name, Kernel kernel = nullptr) : name(name), kernel(kernel) {}

  // As PyTorch writes it; "max" is the overload without a name, "roll.*" all overloads.
  const char* name;
  Kernel kernel;
};

struct OperatorRow {
  Route route;
  Traits traits;
  const char* reason;
  std::initializer_list<NamedOperator> operators;
};

using OperatorRows = c10::ArrayRef<OperatorRow>;

OperatorRows call_rows();

namespace kernels {
OperatorRows kernel_rows();
}

// "roll." for aten::roll, whose overload has no name.
std::string row_key(const c10::OperatorName& operation);
bool matches(const NamedOperator& row, std::string_view key);

// Everything that the rows say about an operator.
struct Special {
  Route route = Route::kUsual;
  Traits traits = kPlain;
  std::string reason;  // a line for each row
  Kernel kernel = nullptr;

  void add(OperatorRows rows, const c10::OperatorName& operation);
};

}  // namespace torch_remote::client
