#include "server/listener/call_logs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

namespace torch_remote::server {
namespace {

// The sandbox keeps the process from raising it. It can be raised here, for a process that is given
// another file.
bool limit_files(pid_t process, uint64_t bytes) {
  rlimit limit{};
  if (::prlimit(process, RLIMIT_FSIZE, nullptr, &limit) != 0)
    return false;
  limit.rlim_cur = std::min<rlim_t>(bytes, limit.rlim_max);
  return ::prlimit(process, RLIMIT_FSIZE, &limit, nullptr) == 0;
}

}  // namespace

Fd CallLogs::begin(pid_t process, const std::string& session) {
  if (prefix_.empty())
    return {};
  const uint64_t limit = std::min(share_, left_);
  File file{prefix_ + "." + session, limit};
  if (limit < kLeastOfOne) {
    log_.write(LogLevel::kWarning,
               "calls of a session are not logged: the files have too much already",
               {{"file", file.path}, {"bytes_left", left_}});
    return {};
  }
  Fd made = make_new_file(file.path);
  if (!made || !limit_files(process, limit)) {
    log_.write(LogLevel::kError, "calls cannot be logged",
               {{"file", file.path}, {"cause", std::strerror(errno)}});
    return {};
  }
  left_ -= limit;
  open_.insert_or_assign(process, std::move(file));
  return made;
}

void CallLogs::end(pid_t process) {
  const auto found = open_.find(process);
  if (found == open_.end())
    return;
  const File& file = found->second;

  struct stat facts {};

  const bool is_there = ::stat(file.path.c_str(), &facts) == 0;
  const uint64_t size = is_there ? static_cast<uint64_t>(facts.st_size) : 0;
  if (is_there && size == 0)
    ::unlink(file.path.c_str());
  left_ += file.reserved;
  if (size > 0)
    left_ -= std::min(left_, std::max(size, kLeastCost));
  open_.erase(found);
}

}  // namespace torch_remote::server
