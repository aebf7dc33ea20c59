#include "server/listener/rehearse.h"

#include <array>
#include <cerrno>
#include <stdexcept>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/platform.h"
#include "base/session_page.h"

namespace torch_remote::server {
namespace {

[[noreturn]] void attempt_and_tell(const std::function<void()>& attempt, const Fd& told) {
  std::string failure;
  try {
    attempt();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const ssize_t written = ::write(told.get(), failure.data(), failure.size());
  ::_exit(written == static_cast<ssize_t>(failure.size()) ? 0 : 1);
}

std::string read_all(const Fd& descriptor) {
  std::string text;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t got = ::read(descriptor.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return text;
    text.append(part.data(), static_cast<size_t>(got));
  }
}

}  // namespace

void rehearse(const std::function<void()>& attempt) {
  auto [told, telling] = pipe_pair();
  const pid_t pid = ::fork();
  if (pid < 0)
    throw_system_errno("fork", errno);
  if (pid == 0)
    attempt_and_tell(attempt, telling);
  telling.reset();
  const std::string failure = read_all(told);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR)
      throw_system_errno("waitpid", errno);
  if (!failure.empty())
    throw std::invalid_argument(failure);
  if (status == 0)
    return;
  const std::string kill = describe_kill(status);
  throw std::invalid_argument("the process that tries --library and --device at the start " +
                              (kill.empty() ? "exited without a result" : "was " + kill));
}

}  // namespace torch_remote::server
