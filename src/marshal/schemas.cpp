#include "marshal/schemas.h"

#include <algorithm>

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_remote::marshal {

std::vector<std::string> aten_schemas() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<std::string> schemas;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(kAten))
      continue;
    if (const auto handle = dispatcher.findSchema(name))
      schemas.push_back(c10::toString(handle->schema()));
  }
  std::sort(schemas.begin(), schemas.end());
  return schemas;
}

const wire::Digest& aten_digest() {
  static const wire::Digest kDigest = wire::operators_digest(aten_schemas());
  return kDigest;
}

}  // namespace torch_remote::marshal
