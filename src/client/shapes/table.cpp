#include <unordered_map>

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
      all->insert(part.begin(), part.end());
    return all;
  }();
  const auto found = table->find(name);
  return found == table->end() ? shapes::find_foreach(name) : found->second;
}

}  // namespace torch_remote::client
