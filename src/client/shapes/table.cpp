#include <unordered_map>

#include <c10/util/Exception.h>

#include "client/shapes/shapes.h"

namespace torch_remote::client {

ShapeFunction find_shape_function(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, ShapeFunction>;
    for (const auto& part :
         {shapes::elementwise_table(), shapes::activation_table(), shapes::normalization_table(),
          shapes::convolution_table(), shapes::indexing_table(), shapes::attention_table(),
          shapes::reduction_table(), shapes::loss_table(), shapes::view_gradient_table(),
          shapes::factory_table(), shapes::linalg_table()})
      for (const auto& row : part)
        TORCH_INTERNAL_ASSERT(all->insert(row).second, row.first, " has two shape functions");
    return all;
  }();
  const auto found = table->find(name);
  return found == table->end() ? shapes::find_foreach(name) : found->second;
}

}  // namespace torch_remote::client
