#pragma once

#include <string_view>
#include <unordered_map>

#include <ATen/core/boxing/KernelFunction.h>

namespace torch_remote::client {

using MetaTable = std::unordered_map<std::string_view, c10::KernelFunction>;

template <typename Schema>
void add_meta(MetaTable& table, std::string_view name, Schema* function) {
  table.emplace(name, c10::KernelFunction::makeFromUnboxedRuntimeFunction<true>(function));
}

// Generated, in parts so that two cores can compile it.
void fill_meta_table_0(MetaTable& table);
void fill_meta_table_1(MetaTable& table);
void fill_meta_table_2(MetaTable& table);
void fill_meta_table_3(MetaTable& table);

}  // namespace torch_remote::client
