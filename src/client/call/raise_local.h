#pragma once

#include "wire/messages.h"

namespace torch_remote::client {

// Throws the exception of the local operator: same type, same text.
[[noreturn]] void raise_as_local(const wire::Error& error);

}  // namespace torch_remote::client
