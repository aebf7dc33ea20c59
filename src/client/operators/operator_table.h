#pragma once

// What is special about operators of `aten`, and why. Registration, OperatorInfo and
// docs/operators.md read it here. Rows of operators with kernels of ours are in kernels/table.cpp,
// all others in operator_table.cpp.

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
  kUsual,       // in a row: what follows from PyTorch's dispatch table (route.h)
  kSent,        // one call to the server, also where PyTorch has a composition
  kView,        // metadata of this side
  kKernel,      // a kernel of ours
  kBranch,      // a kernel of ours that composes it as PyTorch does for the server's kind of device
  kStructured,  // PyTorch shapes the result here and calls the `out=` form
  kComposed,    // PyTorch's composition runs here, also where it could be one call
  kRefused,     // NotImplementedError, if it returns a tensor
};

// How a call is sent and waited for. A row may have several.
using Traits = uint16_t;
constexpr Traits kPlain = 0;
constexpr Traits kDependsOnData = 1;  // only the server can tell what comes out, each time anew
constexpr Traits kAsksServer = 2;     // not Meta but the server tells it, once for each signature
constexpr Traits kChecksValues = 4;   // its kernel does, and raises: each call is waited for
constexpr Traits kWantsOneDtype = 8;  // its kernel refuses tensors of several
constexpr Traits kTakesHostIndices = 16;  // index tensors may lie on the CPU
constexpr Traits kShapedByNumbers = 32;   // numbers are part of the key
constexpr Traits kFillsAnyShape = 64;     // an `out=` with as many elements is not resized
constexpr Traits kLooksAtGradMode = 128;  // so the server must know the mode
constexpr Traits kReads = 256;            // a kernel of ours that waits for bytes of the server
constexpr Traits kSpansDevices = 512;     // takes tensors of several devices of one server

// Registers a kernel of ours under the operator's name.
using Kernel = void (*)(torch::Library& library, const char* name);

struct NamedOperator {
  constexpr NamedOperator(const char* name, Kernel kernel = nullptr) : name(name), kernel(kernel) {}

  // As PyTorch writes it: "max" is the overload without a name. A star at the end stands for
  // anything: "roll.*" are all overloads.
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

// "roll." for aten::roll without an overload name.
std::string row_key(const c10::OperatorName& operation);
bool matches(const NamedOperator& row, std::string_view key);

// All that rows say of an operator.
struct Special {
  Route route = Route::kUsual;
  Traits traits = kPlain;
  std::string reason;  // a line for each row
  Kernel kernel = nullptr;

  void add(OperatorRows rows, const c10::OperatorName& operation);
};

}  // namespace torch_remote::client
