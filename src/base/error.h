#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

// Errors are sorted by who caused them, because that decides what ends (docs/errors.md).
namespace torch_remote {

// The peer sent bytes that break the protocol. The session that read them is closed; nothing
// else in the process is affected.
class ProtocolError : public std::runtime_error {
 public:
  explicit ProtocolError(const std::string& what);
};

// The network failed, or the peer went away. Sticky: what() is the first cause, and every later use
// of the same connection reports that one again.
class ConnectionError : public std::runtime_error {
 public:
  explicit ConnectionError(const std::string& what);
};

// We broke a rule of our own. The message says that it is a bug in torch-remote, so that nobody
// looks for the mistake in their own program or in PyTorch.
class InternalError : public std::runtime_error {
 public:
  explicit InternalError(const std::string& what);
};

// "what: strerror(error)", for a system call that failed with this errno.
std::string describe_errno(std::string_view what, int error);
[[noreturn]] void throw_connection_errno(std::string_view what, int error);

// For a system call that fails only through a bug of ours or when descriptors, memory or processes
// run out: std::system_error, which keeps the errno.
[[noreturn]] void throw_system_errno(std::string_view what, int error);

// Throws InternalError unless the claim holds. `claim` is what should have been true, in words.
void check_internal(bool holds, std::string_view claim);

}  // namespace torch_remote
