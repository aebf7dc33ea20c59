#include <memory>
#include <string>

#include <ATen/core/stack.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "redirect/kernels.h"
#include "redirect/policy.h"
#include "redirect/state.h"

namespace torch_remote::redirect {
namespace {

// Note [Devices in TorchScript]
//
// A script that says "cuda", in its source or in a saved file, gets its device from the operator
// aten::device when it is compiled or loaded; the result becomes a constant of the graph. So
// replacing this operator reaches every device that a script names, before its first run. A script
// that was compiled earlier keeps the devices that it has.

std::shared_ptr<torch::jit::Operator> find_operator() {
  for (const auto& each : torch::jit::getAllOperatorsFor(c10::Symbol::aten("device"))) {
    const auto& arguments = each->schema().arguments();
    if (arguments.size() == 1 && arguments[0].type()->kind() == c10::TypeKind::StringType)
      return each;
  }
  return nullptr;
}

void make_device(torch::jit::Stack& stack) {
  const c10::Device device(torch::jit::pop(stack).toStringRef());
  const Decision decision = decide({kind_of(device.type()), device.index()}, situation());
  torch::jit::push(stack, decision.is_redirected() ? device_of(decision) : device);
}

}  // namespace

// The nodes of graphs have plain pointers to their operators, so both operators live for ever: ours
// is never taken back, and while the redirect is off it does what the original did.
void install_script() {
  static auto* const original = new std::shared_ptr<torch::jit::Operator>;
  if (*original)
    return;
  *original = find_operator();
  if (!*original)
    return;
  const c10::FunctionSchema& schema = (*original)->schema();
  torch::jit::deregisterOperator(schema);
  torch::jit::registerOperator(torch::jit::Operator(c10::toString(schema), make_device,
                                                    c10::AliasAnalysisKind::FROM_SCHEMA));
}

}  // namespace torch_remote::redirect
