#pragma once

#include <exception>
#include <string>

namespace torch_remote {

// The message of an exception; empty for null.
std::string text_of(const std::exception_ptr& cause);

}  // namespace torch_remote
