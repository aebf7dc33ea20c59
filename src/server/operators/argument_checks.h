#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace torch_remote::server {

// Looks at the values of a call before its kernel, which trusts them. Throws c10::Error.
using ArgumentCheck = void (*)(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Null for an operator that needs none: almost all.
ArgumentCheck argument_check(const c10::FunctionSchema& schema);

}  // namespace torch_remote::server
