#pragma once

#include <span>
#include <string_view>

namespace torch_remote::server {

// The lines of operator_list.txt. src/CMakeLists.txt writes the .cpp file.
std::span<const std::string_view> operator_lines();

}  // namespace torch_remote::server
