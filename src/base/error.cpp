#include "base/error.h"

#include <system_error>

namespace torch_remote {

ProtocolError::ProtocolError(const std::string& what) : std::runtime_error("protocol: " + what) {}

ConnectionError::ConnectionError(const std::string& what) : std::runtime_error(what) {}

InternalError::InternalError(const std::string& what)
    : std::runtime_error(what + " (this is a bug in torch-remote; please report it)") {}

std::string describe_errno(std::string_view what, int error) {
  return std::string(what) + ": " + std::generic_category().message(error);
}

void throw_connection_errno(std::string_view what, int error) {
  throw ConnectionError(describe_errno(what, error));
}

void throw_system_errno(std::string_view what, int error) {
  throw std::system_error(error, std::generic_category(), std::string(what));
}

void check_internal(bool holds, std::string_view claim) {
  if (holds)
    return;
  throw InternalError("internal check failed: " + std::string(claim));
}

std::string text_of(const std::exception_ptr& cause) {
  if (cause == nullptr)
    return {};
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace torch_remote
