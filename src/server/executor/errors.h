#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "wire/messages.h"

namespace torch_remote::server {

// The device does nothing more in this process: an assert in a kernel, a fault of its memory. Ends the session.
class DeviceLost : public std::runtime_error {
 public:
  explicit DeviceLost(wire::Error what)
      : std::runtime_error(what.message), error(std::move(what)) {}

  wire::Error error;
};

// What an exception of PyTorch's, or Refused, says to the client: its kind, and its text without
// C++ frames. ProtocolError and ConnectionError end the session, so they are thrown on; so is what tells that the
// device is lost, as DeviceLost.
wire::Error describe_failure(std::exception_ptr cause, const std::string& operation);

}  // namespace torch_remote::server
