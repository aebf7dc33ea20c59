#include "client/operators/coverage.h"

#include <algorithm>
#include <string_view>

#include "client/operators/operator.h"
#include "marshal/route.h"
#include "marshal/schemas.h"

namespace torch_remote::client {
namespace {

using marshal::OperatorRules;
using marshal::Route;

std::string_view word(Route route) {
  constexpr std::string_view kWords[] = {"usual",      "sent",     "view",    "kernel", "branch",
                                         "structured", "composed", "refused", "refused"};
  return kWords[static_cast<size_t>(route)];
}

std::string words(const std::vector<InferenceSource>& sources) {
  std::string all;
  for (const InferenceSource source : sources)
    all += (all.empty() ? "" : ", ") + std::string(word(source));
  return all;
}

std::string_view waits_of(Route route, const OperatorInfo& info, const OperatorRules& rules) {
  if (rules.has(kReads))
    return "always";
  if (route == Route::kView || route == Route::kKernel || marshal::is_refused(route))
    return "never";
  if (route != Route::kSent)
    return "parts";
  if (info.has(kChecksValues) || (info.depends_on_data && info.out_arguments.empty()))
    return "always";
  if (info.sources.back() != InferenceSource::kServer)
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
    const auto& arguments = operation->schema().arguments();
    if (!marshal::mentions(arguments, "Tensor") && !marshal::mentions(arguments, "Device"))
      continue;
    const OperatorInfo& info = operator_info(*operation);
    const OperatorRules rules = marshal::rules_of(name);
    const Route route = marshal::route_of(*operation, rules);
    all.push_back({info.name, std::string(word(route)),
                   route == Route::kSent ? words(info.sources) : "",
                   std::string(waits_of(route, info, rules)), rules.reason});
  }
  std::sort(all.begin(), all.end(),
            [](const OperatorFacts& a, const OperatorFacts& b) { return a.name < b.name; });
  return all;
}

}  // namespace torch_remote::client
