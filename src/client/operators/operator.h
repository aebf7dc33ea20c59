#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "client/operators/operator_table.h"
#include "marshal/argument.h"
#include "wire/signature.h"

namespace torch_remote::client {

// Works out an operator's outputs from its arguments without running anything. False: it does not know;
// ask Meta.
using ShapeFunction = bool (*)(c10::ArrayRef<c10::IValue> arguments,
                               std::vector<wire::Output>& outputs);

// Who tells a call's outputs.
enum class Way : uint8_t {
  kShape,      // our shape function
  kArguments,  // they are arguments, or there are none
  kMeta,       // PyTorch's C++ shape code
  kPython,     // its Meta kernel through the dispatcher, often Python and slow
  kServer,
};

// "shape", "arguments", …
std::string_view word(Way way);

struct ReturnInfo {
  bool is_tensor = false;
  bool is_list = false;
  int written_argument = -1;  // this return is that argument, which the operator writes
};

// What is fixed about an operator, worked out the first time it is called. Never deleted.
struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& operation);

  c10::OperatorHandle handle;
  uint32_t id = 0;
  uint16_t site_number = 0;  // id + 1, for CallSite; 0 beyond the 65,534th operator
  std::string name;          // "aten::add.Tensor"
  wire::Introduction introduction;
  std::vector<marshal::ArgumentInfo> arguments;
  std::vector<ReturnInfo> returns;
  std::vector<uint32_t> out_arguments;  // `out=`: written, not read, resized to fit
  bool has_fresh_outputs = false;       // some return is a new tensor
  bool depends_on_data = false;         // only the server can tell what comes out, each time anew
  bool writes_list = false;             // its first argument, tensor by tensor: _foreach_add_
  bool makes_view = false;              // and no kernel of ours does: another library's
  bool is_foreign = false;  // another library's: nothing tells whether data decides what comes out
  Traits traits = kPlain;   // what the table says (operator_table.h)
  int check_errors = -1;    // its argument of that name, which makes it check values
  std::vector<Way> ways;    // in the order infer() tries them; where all decline, the server tells
  ShapeFunction shape = nullptr;  // of a call in place: that of the form that makes a new tensor
  const c10::KernelFunction* meta = nullptr;  // PyTorch's own C++ shape code, if it has any

  bool has(Traits some) const { return (traits & some) != 0; }
};

// The record of an operator, made at its first call. Thread-safe.
const OperatorInfo& operator_info(const c10::OperatorHandle& operation);

// "add" for the site number of aten::add.Tensor; empty for 0.
std::string operator_at(uint16_t site_number);

// Whether PyTorch has a composition for every device.
bool is_composed(const c10::OperatorHandle& operation);
// Whether it returns a view of an argument.
bool returns_view(const c10::FunctionSchema& schema);

// Generated from the installed PyTorch's headers: at::meta::… by operator name (tools/gen_meta_table.py).
const c10::KernelFunction* find_meta_kernel(std::string_view name);
// Whether that table has "aten::add_…" for "aten::add".
bool has_form_in_place(std::string_view name);
// Our own, for hot operators that have none (shapes/).
ShapeFunction find_shape_function(std::string_view name);

}  // namespace torch_remote::client
