#include "transport/fd_stream.h"

#include <atomic>
#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/platform.h"
#include "transport/gather.h"

namespace torch_remote::transport {
namespace {

constexpr int kSocketBuffer = 4 << 20;

// Thread-safe as Stream requires: the kernel orders shutdown() and reads and writes.
class SocketStream : public Stream {
 public:
  SocketStream(Fd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {
    prevent_sigpipe(socket_);
    // TCP grows its buffers to several MiB unless a size is set; the size that may be set
    // (net.core.wmem_max) is often only 208 KiB. Unix sockets do not grow.
    const bool is_tcp = set_option(IPPROTO_TCP, TCP_NODELAY, 1);
    if (!is_tcp) {
      set_option(SOL_SOCKET, SO_SNDBUF, kSocketBuffer);
      set_option(SOL_SOCKET, SO_RCVBUF, kSocketBuffer);
    }
  }

  ~SocketStream() override { SocketStream::shutdown(); }

  size_t read_some(std::span<std::byte> into) override {
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), 0);
      if (got >= 0)
        return static_cast<size_t>(got);
      if (is_shut_down_)
        return 0;
      if (errno != EINTR)
        throw_connection_errno("reading from " + peer_, errno);
    }
  }

  void write(std::span<const std::span<const std::byte>> parts) override {
    for (Gather gather(parts); !gather.done();) {
      const ssize_t sent = send_parts(socket_, gather.vectors());
      if (sent >= 0)
        gather.advance(static_cast<size_t>(sent));
      else if (errno != EINTR)
        throw_connection_errno("writing to " + peer_, errno);
    }
  }

  void shutdown() noexcept override {
    if (!is_shut_down_.exchange(true))
      ::shutdown(socket_.get(), SHUT_RDWR);
  }

  std::string peer() const override { return peer_; }

  void close_in_forked_child() noexcept override {
    is_shut_down_ = true;  // shutdown(2) would end the parent's connection too
    socket_.reset();
  }

 private:
  bool set_option(int level, int name, int value) noexcept {
    return ::setsockopt(socket_.get(), level, name, &value, sizeof value) == 0;
  }

  Fd socket_;
  const std::string peer_;
  std::atomic<bool> is_shut_down_ = false;
};

}  // namespace

std::unique_ptr<Stream> socket_stream(Fd socket, std::string peer) {
  return std::make_unique<SocketStream>(std::move(socket), std::move(peer));
}

}  // namespace torch_remote::transport
