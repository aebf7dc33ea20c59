#include "server/listener/listening_socket.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "transport/dial.h"

namespace torch_remote::server {
namespace {

// Makes the folder of a Unix socket, for its owner only, where it is missing in the user's runtime
// folder. What cannot be made is told by bind().
transport::Address with_folder(transport::Address address) {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (address.scheme != "unix" || runtime == nullptr || *runtime == '\0')
    return address;
  const std::filesystem::path folder = std::filesystem::path(address.path).parent_path();
  std::error_code unknown;
  if (std::filesystem::equivalent(folder.parent_path(), runtime, unknown))
    ::mkdir(folder.c_str(), 0700);
  return address;
}

}  // namespace

ListeningSocket::ListeningSocket(const std::string& url)
    : address_(with_folder(transport::parse_address(url))),
      socket_(transport::listen_on(address_)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  take_no_descriptors(socket_);

  struct stat found {};

  if (address_.scheme == "unix" && ::lstat(address_.path.c_str(), &found) == 0) {
    device_ = found.st_dev;
    inode_ = found.st_ino;
  }
}

Fd ListeningSocket::accept(Clock::time_point now) {
  Fd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const bool has_none_free =
      !client && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
  if (has_none_free)
    rest_until_ = now + kRest;
  return client;
}

// The kernel keeps the inode of a bound socket while the socket is open, so that no other file gets
// its number.
void ListeningSocket::remove() const {
  struct stat found {};

  if (inode_ != 0 && ::lstat(address_.path.c_str(), &found) == 0 && found.st_dev == device_ &&
      found.st_ino == inode_)
    ::unlink(address_.path.c_str());
}

bool is_among_last(const Fd& newest) {
  constexpr rlim_t kForAProcess = 8;
  rlimit limit{};
  return newest && ::getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
         static_cast<rlim_t>(newest.get()) + kForAProcess >= limit.rlim_cur;
}

Fd renumbered(Fd descriptor) {
  Fd copy(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0));
  return copy ? std::move(copy) : std::move(descriptor);
}

}  // namespace torch_remote::server
