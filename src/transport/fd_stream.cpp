#include "transport/fd_stream.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <span>
#include <tuple>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mutex.h"
#include "base/platform.h"

namespace torch_remote::transport {
namespace {

// Walks over the parts of a gathered write that may take several calls. Confined to one thread.
class Gather {
 public:
  explicit Gather(std::span<const std::span<const std::byte>> parts) : parts_(parts) {
    skip_empty();
  }

  bool done() const noexcept { return parts_.empty(); }

  // What is left, as far as one system call takes it. Valid until the next call of any method.
  std::span<iovec> vectors() noexcept {
    size_t count = 0;
    size_t skipped = offset_;
    for (const std::span<const std::byte> part : parts_) {
      if (count == vectors_.size())
        break;
      // The system calls only read the bytes, but iovec has no const.
      auto* const base = const_cast<std::byte*>(part.data()) + skipped;  // NOLINT
      vectors_[count++] = iovec{base, part.size() - skipped};
      skipped = 0;
    }
    return std::span(vectors_).first(count);
  }

  void advance(size_t written) noexcept {
    offset_ += written;
    skip_empty();
  }

 private:
  void skip_empty() noexcept {
    while (!parts_.empty() && offset_ >= parts_.front().size()) {
      offset_ -= parts_.front().size();
      parts_ = parts_.subspan(1);
    }
  }

  std::span<const std::span<const std::byte>> parts_;
  size_t offset_ = 0;  // bytes of the first part that are already written
  std::array<iovec, 64> vectors_;
};

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

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

// Thread-safe as Stream requires. The peer of a pipe sees the end only when our descriptor is
// closed, so shutdown() must close what another thread may be using. It makes `wake_` readable for
// ever, which ends that thread's poll, and then takes the thread's mutex. Threads hold their mutex
// while they poll, and every poll includes `wake_`.
class PipeStream : public Stream {
 public:
  PipeStream(Fd incoming, Fd outgoing, std::string peer, Fd companion)
      : peer_(std::move(peer)),
        incoming_(std::move(incoming)),
        outgoing_(std::move(outgoing)),
        companion_(std::move(companion)) {
    std::tie(wake_, wake_writer_) = pipe_pair();
    make_non_blocking(incoming_.get());
    make_non_blocking(outgoing_.get());
    prevent_sigpipe(outgoing_);
  }

  ~PipeStream() override { PipeStream::shutdown(); }

  size_t read_some(std::span<std::byte> into) override EXCLUDES(read_mutex_) {
    MutexLock lock(read_mutex_);
    while (!is_shut_down_) {
      const ssize_t got = ::read(incoming_.get(), into.data(), into.size());
      if (got >= 0)
        return static_cast<size_t>(got);
      wait_or_throw("reading from ", incoming_.get(), POLLIN);
    }
    return 0;
  }

  void write(std::span<const std::span<const std::byte>> parts) override EXCLUDES(write_mutex_) {
    MutexLock lock(write_mutex_);
    const HeldSigpipe held;
    for (Gather gather(parts); !gather.done();) {
      if (is_shut_down_)
        throw ConnectionError("the connection to " + peer_ + " was shut down on this side");
      const std::span<iovec> vectors = gather.vectors();
      const ssize_t sent =
          ::writev(outgoing_.get(), vectors.data(), static_cast<int>(vectors.size()));
      if (sent >= 0)
        gather.advance(static_cast<size_t>(sent));
      else
        wait_or_throw("writing to ", outgoing_.get(), POLLOUT);
    }
  }

  void shutdown() noexcept override EXCLUDES(read_mutex_, write_mutex_) {
    if (is_shut_down_.exchange(true))
      return;
    wake_writer_.reset();
    {
      MutexLock lock(read_mutex_);
      incoming_.reset();
    }
    MutexLock lock(write_mutex_);
    outgoing_.reset();
    companion_.reset();
  }

  std::string peer() const override { return peer_; }

  // The child has only one thread, so nobody unlocks a mutex that was locked during the fork().
  void close_in_forked_child() noexcept override NO_THREAD_SAFETY_ANALYSIS {
    is_shut_down_ = true;
    incoming_.reset();
    outgoing_.reset();
    companion_.reset();
    wake_.reset();
    wake_writer_.reset();
  }

 private:
  static void make_non_blocking(int descriptor) {
    int yes = 1;
    if (::ioctl(descriptor, FIONBIO, &yes) != 0)  // in the sandbox fcntl() may not
      throw_system_errno("ioctl", errno);
  }

  // Called after a failure with errno.
  void wait_or_throw(const char* doing, int descriptor, short event) const {
    if (errno == EINTR)
      return;
    if (!would_block(errno))
      throw_connection_errno(doing + peer_, errno);
    std::array<pollfd, 2> polled{pollfd{descriptor, event, 0}, pollfd{wake_.get(), POLLIN, 0}};
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR)
      throw_connection_errno(doing + peer_, errno);
  }

  // Constant after construction.
  const std::string peer_;
  Fd wake_;

  std::atomic<bool> is_shut_down_ = false;
  Fd wake_writer_;  // used only by the thread that set is_shut_down_
  Mutex read_mutex_;
  Fd incoming_ GUARDED_BY(read_mutex_);
  Mutex write_mutex_;
  Fd outgoing_ GUARDED_BY(write_mutex_);
  Fd companion_ GUARDED_BY(write_mutex_);
};

}  // namespace

std::unique_ptr<Stream> socket_stream(Fd socket, std::string peer) {
  return std::make_unique<SocketStream>(std::move(socket), std::move(peer));
}

std::unique_ptr<Stream> pipe_stream(Fd incoming, Fd outgoing, std::string peer, Fd companion) {
  return std::make_unique<PipeStream>(std::move(incoming), std::move(outgoing), std::move(peer),
                                      std::move(companion));
}

}  // namespace torch_remote::transport
