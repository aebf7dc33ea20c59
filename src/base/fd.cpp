#include "base/fd.h"

#include <unistd.h>

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

}  // namespace torch_remote
