#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "server/storage_table.h"
#include "wire/messages.h"

namespace torch_remote::server {

// What an exception of PyTorch's, or Refused, says to the client: its kind, and its text without
// C++ frames. ProtocolError and ConnectionError end the session, so they are thrown on.
Poison describe_failure(std::exception_ptr cause, uint64_t call, const std::string& operation);

}  // namespace torch_remote::server
