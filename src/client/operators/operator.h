#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "client/operators/alerts.h"
#include "marshal/argument.h"
#include "marshal/operator_table.h"
#include "wire/signature.h"

namespace torch_remote::client {

using enum marshal::Trait;

// Computes an operator's outputs from its arguments without running it. False: unknown, ask Meta.
using ShapeFunction = bool (*)(c10::ArrayRef<c10::IValue> arguments,
                               std::vector<wire::Output>& outputs);

// Who tells the outputs of a call.
enum class InferenceSource : uint8_t {
  kShape,      // our shape function
  kArguments,  // each output is one of the arguments, or the operator has no outputs
  kMeta,       // PyTorch's C++ shape code
  kPython,     // its Meta kernel through the dispatcher, often Python and slow
  kServer,
};

// "shape", "arguments", …
std::string_view word(InferenceSource source);

struct ReturnInfo {
  bool is_tensor = false;
  bool is_list = false;
  int written_argument = -1;  // the argument that the operator writes and returns here
};

// The fixed facts about an operator, computed at its first call. Never deleted.
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
  bool depends_on_data = false;  // the outputs depend on data: the server tells them at each call
  bool writes_list = false;  // it writes the tensors of its first argument, a list: _foreach_add_
  bool makes_view = false;   // returns a view, and we have no kernel for it: another library's
  bool is_foreign = false;   // another library's: its outputs may depend on data
  marshal::Traits traits = kPlain;                           // its rows in marshal/operator_table.h
  marshal::ResultBound bound = marshal::ResultBound::kNone;  // the same
  int check_errors = -1;  // index of its argument `check_errors`, which makes it check values
  // In the order infer() tries them. If all decline, the server tells the outputs.
  std::vector<InferenceSource> sources;
  // for a call in place: the function of the form that makes a new tensor
  ShapeFunction shape = nullptr;
  const c10::KernelFunction* meta = nullptr;  // PyTorch's own C++ shape code, if it has any
  const Alert* alert = nullptr;               // of operators that have kMayAlert

  bool has(marshal::Traits some) const { return (traits & some) != 0; }
};

// The record of an operator, made at its first call. Thread-safe.
const OperatorInfo& operator_info(const c10::OperatorHandle& operation);

// "add" for the site number of aten::add.Tensor; empty for 0.
std::string operator_at(uint16_t site_number);

// at::meta::… by operator name, generated from PyTorch's headers (tools/gen_meta_table.py).
const c10::KernelFunction* find_meta_kernel(std::string_view name);
// Whether that table has "aten::add_…", given "aten::add".
bool has_form_in_place(std::string_view name);

// Ours, for frequent operators that are not in that table. The functions are in shapes/, which is
// above this folder, so that register.cpp hands them in before the first call.
using FindShapeFunction = ShapeFunction (*)(std::string_view name);
void use_shape_functions(FindShapeFunction find);

}  // namespace torch_remote::client
