#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace torch_remote::transport {

// Bytes in both directions. One thread may read while another writes; any may call shutdown().
class Stream {
 public:
  Stream() = default;
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Waits for at least one byte (`into` is not empty). 0: the peer has closed, or shutdown() was
  // called. Throws ConnectionError.
  virtual size_t read_some(std::span<std::byte> into) = 0;
  // Writes all parts in order, in as few system calls as possible. Throws ConnectionError, also
  // after shutdown().
  virtual void write(std::span<const std::span<const std::byte>> parts) = 0;
  // Wakes a blocked reader and writer. What was written before still reaches the peer. Idempotent.
  virtual void shutdown() noexcept = 0;

  // Where the stream encrypts: agrees on keys with the peer. Else does nothing. Called once, before
  // anything is read or written. A client gives the preamble, which its stream sends first and in
  // the clear, because a listener must read it. Throws ConnectionError, or TlsError.
  virtual void secure(std::span<const std::byte> /*preamble*/) {}

  // After secure(): bytes that only the two ends of this connection can know. Empty where the
  // stream does not encrypt.
  virtual std::span<const std::byte> channel_binding() const { return {}; }

  // For messages, e.g. "tcp://127.0.0.1:4711".
  virtual std::string peer() const = 0;

  // Only for the child of a fork(): closes its copies of the descriptors. Otherwise they would keep
  // the connection open after the parent has ended.
  virtual void close_in_forked_child() noexcept {}
};

}  // namespace torch_remote::transport
