#include "client/operators/meta_table.h"

#include <algorithm>

#include "client/operators/operator.h"

namespace torch_remote::client {
namespace {

const MetaTable& meta_table() {
  static const MetaTable* table = [] {
    auto* made = new MetaTable;
    fill_meta_table_0(*made);
    fill_meta_table_1(*made);
    fill_meta_table_2(*made);
    fill_meta_table_3(*made);
    return made;
  }();
  return *table;
}

}  // namespace

const c10::KernelFunction* find_meta_kernel(std::string_view name) {
  const auto found = meta_table().find(name);
  return found == meta_table().end() ? nullptr : &found->second;
}

bool has_form_in_place(std::string_view name) {
  return std::any_of(meta_table().begin(), meta_table().end(), [&](const auto& entry) {
    const std::string_view found = entry.first.substr(0, entry.first.find('.'));
    return found.size() == name.size() + 1 && found.starts_with(name) && found.ends_with('_');
  });
}

}  // namespace torch_remote::client
