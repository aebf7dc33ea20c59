#include "server/listener/token.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <stdexcept>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/token_file.h"

namespace torch_remote::server {
namespace {

constexpr const char* kSetting = "--token-file";
constexpr size_t kMinToken = 16;

[[noreturn]] void fail(const std::string& doing, const std::string& path) {
  const int error = errno;
  throw std::runtime_error(
      describe_errno(std::string(kSetting) + ": " + doing + " the token file " + path, error));
}

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

// Empty when the file exists.
Fd make_token_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file && errno != EEXIST)
    fail("making", path);
  return file;
}

}  // namespace

std::string read_or_make_token(const std::string& given) {
  const std::string path = expand_home(given);
  if (const Fd file = make_token_file(path)) {
    const std::string line = random_hex() + "\n";
    if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      fail("writing", path);
  }
  TokenFile found = read_token_file(kSetting, path);
  if (!found.is_private)
    log(LogLevel::kWarning, "others can read the token file; chmod 600 it", {{"path", path}});
  if (!found.is_trusted)
    log(LogLevel::kWarning,
        "the token file belongs to another user, who can read and change it; make one of your own",
        {{"path", path}});
  if (found.token.size() < kMinToken) {
    throw std::runtime_error(std::string(kSetting) + ": the token in " + path +
                             " is shorter than 16 characters; delete the file "
                             "to have a new one made");
  }
  return std::move(found.token);
}

}  // namespace torch_remote::server
