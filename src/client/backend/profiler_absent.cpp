// Compiled where torch has no headers of Kineto, else profiler.cpp.
#include "client/backend/profiler.h"

namespace torch_remote::client {

bool has_profiler() {
  return false;
}

void register_profiler() {}

}  // namespace torch_remote::client
