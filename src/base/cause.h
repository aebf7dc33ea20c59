#pragma once

#include <exception>
#include <string>

namespace torch_remote {

// What an exception says, as the cause of another thing. Empty for none.
std::string text_of(const std::exception_ptr& cause);

}  // namespace torch_remote
