#include "server/libraries.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <unordered_set>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"

namespace torch_remote::server {
namespace {

// A file of that name here comes before the loader's own places.
std::string place_of(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? std::filesystem::absolute(path).string() : path;
}

void load(const std::string& path) {
  try {
    if (::dlopen(place_of(path).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr)
      return;
  } catch (const std::exception& error) {  // thrown while it registers its operators
    throw std::invalid_argument("cannot load the library " + path + ": " + error.what());
  }
  throw std::invalid_argument("cannot load the library " + path + ": " + ::dlerror());
}

[[noreturn]] void load_and_tell(const std::vector<std::string>& paths, int told) {
  std::string failure;
  try {
    load_libraries(paths);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const ssize_t written = ::write(told, failure.data(), failure.size());
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

std::vector<c10::OperatorName> load_libraries(const std::vector<std::string>& paths) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::unordered_set<c10::OperatorName> before;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (dispatcher.findSchema(name))
      before.insert(name);
  }
  for (const std::string& path : paths)
    load(path);
  std::vector<c10::OperatorName> added;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!before.contains(name) && dispatcher.findSchema(name))
      added.push_back(name);
  }
  if (!paths.empty())
    log(LogLevel::kInfo, "libraries loaded",
        {{"libraries", paths.size()}, {"operators", added.size()}});
  return added;
}

void try_libraries(const std::vector<std::string>& paths) {
  if (paths.empty())
    return;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw_system_errno("pipe2", errno);
  const Fd told(ends[0]);
  Fd telling(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0)
    throw_system_errno("fork", errno);
  if (pid == 0)
    load_and_tell(paths, telling.get());
  telling.reset();
  const std::string failure = read_all(told);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR)
      throw_system_errno("waitpid", errno);
  }
  if (!failure.empty())
    throw std::invalid_argument(failure);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::invalid_argument("a library given with --library ends the process that loads it");
}

}  // namespace torch_remote::server
