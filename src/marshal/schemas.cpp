#include "marshal/schemas.h"

#include <algorithm>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

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

namespace {

torch::Library& define() {
  auto& library =
      *new torch::Library(torch::Library::DEF, kCollectives, std::nullopt, __FILE__, __LINE__);
  for (const char* const schema : kCollectiveSchemas)
    library.def(schema);
  return library;
}

}  // namespace

void define_collectives() {
  [[maybe_unused]] static const torch::Library& kDefined = define();  // is never deleted
}

}  // namespace torch_remote::marshal
