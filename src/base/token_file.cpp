#include "base/token_file.h"

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"

namespace torch_remote {
namespace {

constexpr size_t kMaxTokenFile = 4096;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos)
    return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

std::string expand_home(const std::string& path) {
  const char* const home = std::getenv("HOME");  // NOLINT(concurrency-mt-unsafe)
  if (home == nullptr || (path != "~" && !path.starts_with("~/")))
    return path;
  return home + path.substr(1);
}

TokenFile read_token_file(const std::string& setting, const std::string& path) {
  const auto fail = [&] {
    throw std::runtime_error(describe_errno(setting + ": reading the token file " + path, errno));
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));

  struct stat found {};

  if (!file || ::fstat(file.get(), &found) != 0)
    fail();
  std::string text(kMaxTokenFile, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0)
    fail();
  text.resize(static_cast<size_t>(got));
  return {std::string(trimmed(text)), (found.st_mode & 077) == 0,
          found.st_uid == ::geteuid() || found.st_uid == 0};
}

}  // namespace torch_remote
