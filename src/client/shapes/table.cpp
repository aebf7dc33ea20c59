#include <unordered_map>

#include <c10/util/Exception.h>

#include "client/shapes/shapes.h"

namespace torch_remote::client::shapes {

ShapeFunction find_shape_function(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, ShapeFunction>;
    for (const auto& part :
         {elementwise_table(), activation_table(), normalization_table(), convolution_table(),
          indexing_table(), attention_table(), reduction_table(), loss_table(),
          view_gradient_table(), factory_table(), linalg_table()})
      for (const auto& row : part)
        TORCH_INTERNAL_ASSERT(all->insert(row).second, row.first, " has two shape functions");
    return all;
  }();
  const auto found = table->find(name);
  return found == table->end() ? find_foreach(name) : found->second;
}

}  // namespace torch_remote::client::shapes
