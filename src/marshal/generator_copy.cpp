#include "marshal/generator_copy.h"

#include <torch/library.h>

namespace torch_remote::marshal {
namespace {

torch::Library& define_copy() {
  auto& library = *new torch::Library(torch::Library::FRAGMENT, "torch_remote", std::nullopt,
                                      __FILE__, __LINE__);
  library.def("copy_generator(Generator? to, Generator? source) -> ()");
  return library;
}

}  // namespace

void define_generator_copy() {
  [[maybe_unused]] static const torch::Library& kDefined = define_copy();  // is never deleted
}

}  // namespace torch_remote::marshal
