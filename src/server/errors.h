#pragma once

#include <exception>
#include <string>

#include "wire/messages.h"

namespace torch_remote::server {

// What an exception of PyTorch's, or Refused, says to the client: its kind, and its text without
// C++ frames. ProtocolError and ConnectionError end the session, so they are thrown on.
wire::Error describe_failure(std::exception_ptr cause, const std::string& operation);

}  // namespace torch_remote::server
