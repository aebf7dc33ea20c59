#include "transport/dial.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "transport/address.h"
#include "transport/fd_stream.h"

namespace torch_remote::transport {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

void set_blocking(const Fd& socket, bool blocking) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  const int wanted = blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK;
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, wanted) < 0)
    throw_system_errno("fcntl", errno);
}

// Waits for a connect() in progress and returns its errno; ETIMEDOUT at the deadline.
int finish_connect(const Fd& socket, Clock::time_point deadline) {
  pollfd polled{socket.get(), POLLOUT, 0};
  for (;;) {
    const int ready = ::poll(&polled, 1, milliseconds_until(deadline));
    if (ready == 0 && Clock::now() >= deadline)
      return ETIMEDOUT;
    if (ready > 0)
      break;
    if (ready < 0 && errno != EINTR)
      return errno;
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// Returns the errno of the attempt, 0 when connected.
int try_connect(const Fd& socket, const SocketAddress& to, Clock::time_point deadline) {
  if (::connect(socket.get(), to.get(), to.size()) == 0)
    return 0;
  if (errno == EINPROGRESS || errno == EINTR)
    return finish_connect(socket, deadline);
  return errno;
}

// False: the socket file is left over, and no process accepts connections there.
bool somebody_listens(const SocketAddress& address) {
  const Fd probe = stream_socket(AF_UNIX);
  set_blocking(probe, false);
  return ::connect(probe.get(), address.get(), address.size()) == 0 || errno != ECONNREFUSED;
}

void remove_stale_socket(const std::string& path, const SocketAddress& address) {
  struct stat found {};

  if (::lstat(path.c_str(), &found) != 0)
    return;
  if (!S_ISSOCK(found.st_mode)) {
    throw ConnectionError("cannot listen on unix://" + path +
                          ": a file that is not a socket is there");
  }
  if (somebody_listens(address))
    throw ConnectionError("cannot listen on unix://" + path + ": another server listens there");
  ::unlink(path.c_str());
}

// The umask is the process's: a file that another thread creates now is also for its owner only.
class OwnerOnly {
 public:
  OwnerOnly() : before_(::umask(077)) {}

  ~OwnerOnly() { ::umask(before_); }

  OwnerOnly(const OwnerOnly&) = delete;
  OwnerOnly& operator=(const OwnerOnly&) = delete;

 private:
  mode_t before_;
};

void bind_and_listen(const Fd& socket, const SocketAddress& at, const Address& address) {
  const OwnerOnly owner_only;
  if (::bind(socket.get(), at.get(), at.size()) != 0 || ::listen(socket.get(), SOMAXCONN) != 0)
    throw_connection_errno("cannot listen on " + to_string(address), errno);
}

Fd listen_on_unix(const Address& address) {
  const SocketAddress at = SocketAddress::unix_path(address.path);
  remove_stale_socket(address.path, at);
  Fd socket = stream_socket(AF_UNIX);
  bind_and_listen(socket, at, address);
  return socket;
}

SocketAddress loopback_only(const Address& address) {
  if (const auto at = SocketAddress::loopback(address.host, address.port))
    return *at;
  throw std::invalid_argument(
      "refusing to listen on " + to_string(address) +
      ": without TLS only loopback (127.0.0.1, ::1 or localhost) is served. For other machines "
      "use --listen tls://" +
      short_name(address).substr(std::string_view("tcp://").size()) +
      " with a --token-file, or listen on loopback and reach it through ssh.");
}

Fd listen_on_tcp(Address& address) {
  const bool is_open = address.scheme == "tls";
  const SocketAddress at = is_open ? resolve(address).front() : loopback_only(address);
  Fd socket = stream_socket(at.family());
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  bind_and_listen(socket, at, address);
  address.port = SocketAddress::of_socket(socket).port();
  return socket;
}

}  // namespace

DialError::DialError(const std::string& address, std::string reason)
    : ConnectionError("connecting to " + address + ": " + reason), reason_(std::move(reason)) {}

void check_listening(const Address& address) {
  if (address.scheme == "tcp")
    static_cast<void>(loopback_only(address));
}

std::unique_ptr<Stream> dial(const Address& address, Clock::time_point deadline,
                             const std::function<void(const Fd&)>& check) {
  const std::string name = short_name(address);
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& to : resolve(address)) {
    Fd socket = stream_socket(to.family());
    set_blocking(socket, false);
    error = try_connect(socket, to, deadline);
    if (error == 0) {
      if (check)
        check(socket);
      set_blocking(socket, true);
      return socket_stream(std::move(socket), name);
    }
  }
  throw DialError(name, std::generic_category().message(error));
}

Fd listen_on(Address& address) {
  return address.scheme == "unix" ? listen_on_unix(address) : listen_on_tcp(address);
}

}  // namespace torch_remote::transport
