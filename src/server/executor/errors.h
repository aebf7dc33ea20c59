#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "wire/messages.h"

namespace torch_remote::server {

// The device is unusable in this process (a kernel's assert, a memory fault). Ends the session.
class DeviceLost : public std::runtime_error {
 public:
  explicit DeviceLost(wire::Error what)
      : std::runtime_error(what.message), error(std::move(what)) {}

  wire::Error error;
};

// Describes an exception to the client: its kind and its text without C++ frames. Throws
// ProtocolError and ConnectionError again, because they end the session, and DeviceLost if the
// device is lost.
wire::Error describe_failure(std::exception_ptr cause, const std::string& operation);

// The same for a thread other than the executor, which cannot end the session: throws nothing.
wire::Error describe_any_failure(std::exception_ptr cause, const std::string& operation);

}  // namespace torch_remote::server
