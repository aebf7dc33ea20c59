#include "server/executor/call_log.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"

namespace torch_remote::server {
namespace {

constexpr size_t kMostPendingBytes = size_t{64} << 10;
// Per session, so that a forgotten file does not fill the disk.
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

}  // namespace

void try_call_log(const std::string& prefix) {
  if (prefix.empty())
    return;
  const std::string path = prefix + "." + std::to_string(::getpid());
  if (!make_new_file(path))
    throw std::invalid_argument(describe_errno("--log-calls: making " + path, errno));
  ::unlink(path.c_str());
}

Fd CallLog::make_file(const std::string& prefix, const std::string& session) {
  if (prefix.empty())
    return {};
  const std::string path = prefix + "." + session;
  Fd file = make_new_file(path);
  if (!file) {
    // The client must not learn where the server keeps its files.
    log(LogLevel::kError, "calls cannot be logged",
        {{"file", path}, {"cause", std::strerror(errno)}});
    throw std::runtime_error("the server cannot write its log of calls");
  }
  return file;
}

CallLog::~CallLog() {
  flush();
}

void CallLog::add_line(std::string_view name) {
  pending_.append(name).push_back('\n');
  if (pending_.size() >= kMostPendingBytes)
    flush();
}

void CallLog::flush() noexcept {
  std::string_view rest = pending_;
  while (!rest.empty() && file_.get() >= 0) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<size_t>(written));
      written_ += static_cast<uint64_t>(written);
      if (written_ < kMostBytes)
        continue;
      errno = EFBIG;
    }
    if (written < 0 && errno == EINTR)
      continue;
    log(LogLevel::kWarning, "calls are no longer logged", {{"cause", std::strerror(errno)}});
    file_.reset();
  }
  pending_.clear();
}

}  // namespace torch_remote::server
