#include "base/fd.h"

#include <cerrno>

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

}  // namespace torch_remote
