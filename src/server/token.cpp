#include "server/token.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <stdexcept>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/platform.h"

namespace torch_remote::server {
namespace {

constexpr size_t kMaxTokenFile = 4096;
constexpr size_t kMinToken = 16;

std::string random_hex() {
  std::array<std::byte, 32> bytes{};
  random_bytes(bytes);
  std::string hex;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[std::to_integer<unsigned>(byte) >> 4];
    hex += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return hex;
}

// Nothing when the file is there already.
Fd make_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file && errno != EEXIST)
    throw std::runtime_error(describe_errno("making the token file " + path, errno));
  return file;
}

std::string read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));

  struct stat found {};

  if (!file || ::fstat(file.get(), &found) != 0) {
    throw std::runtime_error(describe_errno("reading the token file " + path, errno));
  }
  if ((found.st_mode & 077) != 0) {
    log(LogLevel::kWarning, "others can read the token file; chmod 600 it", {{"path", path}});
  }
  std::string text(kMaxTokenFile, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0)
    throw std::runtime_error(describe_errno("reading the token file " + path, errno));
  text.resize(static_cast<size_t>(got));
  return text;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos)
    return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

std::string read_or_make_token(const std::string& path) {
  if (const Fd file = make_file(path)) {
    const std::string line = random_hex() + "\n";
    if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      throw std::runtime_error(describe_errno("writing the token file " + path, errno));
    }
  }
  std::string token = trimmed(read_file(path));
  if (token.size() < kMinToken) {
    throw std::runtime_error("the token in " + path +
                             " is shorter than 16 characters; delete the file "
                             "to have a new one made");
  }
  return token;
}

}  // namespace torch_remote::server
