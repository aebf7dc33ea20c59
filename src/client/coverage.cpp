#include "client/coverage.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <ATen/core/enum_tag.h>

#include "client/operator.h"
#include "client/register.h"
#include "marshal/schemas.h"

namespace torch_remote::client {
namespace {

using c10::DispatchKey;

bool has_kernel(const c10::OperatorHandle& operation, DispatchKey key) {
  return operation.hasKernelForDispatchKey(key);
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool mentions(const c10::FunctionSchema& schema, std::string_view type) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [type](const c10::Argument& argument) {
                       return argument.type()->str().find(type) != std::string::npos;
                     });
}

// Whether PyTorch has a composition for every device.
bool is_composed(const c10::OperatorHandle& operation) {
  return has_kernel(operation, DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         has_kernel(operation, DispatchKey::CompositeExplicitAutograd) ||
         has_kernel(operation, DispatchKey::CompositeImplicitAutograd);
}

// Whether a call goes to dispatch(): as the fallback, or because we registered it.
bool is_sent(const c10::OperatorHandle& operation) {
  if (has_kernel(operation, DispatchKey::PrivateUse1))
    return travels(operation.operator_name());
  return !is_composed(operation);
}

std::string route_of(const c10::OperatorHandle& operation, const OperatorInfo& info) {
  if (info.is_refused)
    return "refused";
  if (has_kernel(operation, DispatchKey::AutogradPrivateUse1))
    return "branch";
  if (is_sent(operation))
    return "sent";
  const bool is_implicit = has_kernel(operation, DispatchKey::CompositeImplicitAutograd);
  if (!is_implicit && (is_view(operation.schema()) || operation.hasTag(at::Tag::inplace_view)))
    return "view";
  if (has_kernel(operation, DispatchKey::PrivateUse1))
    return "kernel";
  if (has_kernel(operation, DispatchKey::CompositeExplicitAutogradNonFunctional))
    return "structured";
  return "composed";
}

// As infer() goes about it.
std::string inference_of(const c10::OperatorHandle& operation, const OperatorInfo& info) {
  const std::string first = info.shape != nullptr ? "shape, " : "";
  if (info.asks_server || (info.depends_on_data && info.out_arguments.empty()))
    return first + "server";
  if (info.meta != nullptr)
    return first + "meta";
  if (info.out_arguments.empty() && !info.has_fresh_outputs)
    return first + "arguments";
  // Meta has a fallback that throws, so the computed table does not tell.
  const bool has_meta = has_kernel(operation, DispatchKey::Meta) || is_composed(operation);
  const bool has_inputs = info.arguments.size() > info.out_arguments.size() &&
                          info.arguments[0].kind != marshal::ArgumentKind::kIntList;
  const bool asks = !has_meta || (!info.out_arguments.empty() && has_inputs);
  return first + (asks ? "server" : "python");
}

std::string waits_of(const OperatorFacts& facts, const OperatorInfo& info) {
  constexpr std::array<std::string_view, 4> kReads = {
      "aten::_local_scalar_dense",
      "aten::copy_",
      "aten::_copy_from",
      "aten::_copy_from_and_resize",
  };
  if (std::find(kReads.begin(), kReads.end(), info.name) != kReads.end())
    return "always";
  if (facts.route == "view" || facts.route == "kernel" || facts.route == "refused")
    return "never";
  if (facts.route != "sent")
    return "parts";
  if (info.checks_values)
    return "always";
  if (facts.inference.find("server") == std::string::npos)
    return "never";
  return info.depends_on_data ? "always" : "first";
}

}  // namespace

std::vector<OperatorFacts> operator_facts() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<OperatorFacts> all;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto operation = dispatcher.findSchema(name);
    if (!operation.has_value() || !name.name.starts_with(marshal::kAten))
      continue;
    if (!mentions(operation->schema(), "Tensor") && !mentions(operation->schema(), "Device"))
      continue;
    const OperatorInfo& info = operator_info(*operation);
    OperatorFacts facts;
    facts.name = info.name;
    facts.route = route_of(*operation, info);
    if (facts.route == "sent")
      facts.inference = inference_of(*operation, info);
    facts.waits = waits_of(facts, info);
    all.push_back(std::move(facts));
  }
  std::sort(all.begin(), all.end(),
            [](const OperatorFacts& a, const OperatorFacts& b) { return a.name < b.name; });
  return all;
}

}  // namespace torch_remote::client
