#pragma once

namespace torch_remote::marshal {

// Gives the first generator the state of the second, as a GENERATOR message with kCopy does. It is
// a call, because programs have no other messages.
constexpr const char* kCopyGenerator = "torch_remote::copy_generator";

// Makes PyTorch know its schema. Once for the process: client and server may be in one.
void define_generator_copy();

}  // namespace torch_remote::marshal
