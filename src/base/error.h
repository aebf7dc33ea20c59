#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

// Errors are sorted by who caused them: that decides what is closed (docs/errors.md).
namespace torch_remote {

// The peer sent bytes that break the protocol. Only the session that read them ends.
class ProtocolError : public std::runtime_error {
 public:
  explicit ProtocolError(const std::string& what);
};

// The network failed or the peer is gone. A connection that failed throws its first error again on
// every later use.
class ConnectionError : public std::runtime_error {
 public:
  explicit ConnectionError(const std::string& what);
};

// A bug in torch-remote. The message says so, so that users do not search their own program.
class InternalError : public std::runtime_error {
 public:
  explicit InternalError(const std::string& what);
};

// "what: strerror(error)", for a system call that failed with this errno.
std::string describe_errno(std::string_view what, int error);
[[noreturn]] void throw_connection_errno(std::string_view what, int error);

// For a system call that fails only because of a bug of ours, or because descriptors, memory or
// processes have run out.
[[noreturn]] void throw_system_errno(std::string_view what, int error);

// `claim` says in words what should be true.
void check_internal(bool holds, std::string_view claim);

// The message of an exception; empty for null.
std::string text_of(const std::exception_ptr& cause);

}  // namespace torch_remote
