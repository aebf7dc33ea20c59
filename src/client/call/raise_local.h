#pragma once

#include "wire/messages.h"

namespace torch_remote::client {

// Throws what the local operator would have thrown: the same type, the same text.
[[noreturn]] void raise_as_local(const wire::Error& error);

}  // namespace torch_remote::client
