#include "marshal/collectives.h"

#include <torch/library.h>

namespace torch_remote::marshal {
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
