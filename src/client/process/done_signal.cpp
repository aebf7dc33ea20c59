#include "client/process/done_signal.h"

#include <unistd.h>

#include "base/platform.h"

namespace torch_remote::client {

DoneSignal::DoneSignal() : ends_(pipe_pair()) {}

void DoneSignal::set() noexcept {
  if (is_set_.exchange(true))
    return;
  const char byte = 0;
  while (::write(ends_.second.get(), &byte, 1) < 0 && errno == EINTR) {
  }
}

void DoneSignal::clear() noexcept {
  if (!is_set_)
    return;
  char byte = 0;
  while (::read(ends_.first.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  is_set_ = false;
}

}  // namespace torch_remote::client
