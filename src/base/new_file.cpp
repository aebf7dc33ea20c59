#include "base/new_file.h"

#include <fcntl.h>

namespace torch_remote {

Fd make_new_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  return Fd(::open(path.c_str(), kFlags, 0600));
}

}  // namespace torch_remote
