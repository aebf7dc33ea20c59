#include "base/fd.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace torch_remote {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = other.release();
  }
  return *this;
}

void Fd::reset() noexcept {
  if (descriptor_ < 0)
    return;
  // Not repeated on EINTR: Linux has closed it already, and the number may be in use again.
  ::close(release());
}

Fd owned(int descriptor, std::string_view what) {
  if (descriptor < 0)
    throw_system_errno(what, errno);
  return Fd(descriptor);
}

Fd make_new_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  return Fd(::open(path.c_str(), kFlags, 0600));
}

}  // namespace torch_remote
