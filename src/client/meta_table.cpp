#include "client/meta_table.h"

#include "client/operator.h"

namespace torch_remote::client {

const c10::KernelFunction* find_meta_kernel(std::string_view name) {
  static const MetaTable* table = [] {
    auto* made = new MetaTable;
    fill_meta_table_0(*made);
    fill_meta_table_1(*made);
    fill_meta_table_2(*made);
    fill_meta_table_3(*made);
    return made;
  }();
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace torch_remote::client
