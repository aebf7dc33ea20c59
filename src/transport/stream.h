#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace torch_remote::transport {

// A byte stream in both directions. One thread may read while another writes; shutdown() may come
// from any.
class Stream {
 public:
  Stream() = default;
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Blocks for at least one byte (`into` is not empty). 0: the peer closed, or shutdown() was
  // called. Throws ConnectionError.
  virtual size_t read_some(std::span<std::byte> into) = 0;
  // Writes all parts in order, gathered into as few system calls as possible. Throws
  // ConnectionError, also after shutdown().
  virtual void write(std::span<const std::span<const std::byte>> parts) = 0;
  // Wakes a blocked reader and a blocked writer. What was written before still reaches the peer,
  // which then sees the end. Idempotent.
  virtual void shutdown() noexcept = 0;
  // For messages, e.g. "tcp://127.0.0.1:4711".
  virtual std::string peer() const = 0;

  // Only for the child of a fork(): closes its copies of the descriptors, so that it does not keep
  // the connection open when the parent has gone. The parent's connection goes on.
  virtual void close_in_forked_child() noexcept {}
};

}  // namespace torch_remote::transport
