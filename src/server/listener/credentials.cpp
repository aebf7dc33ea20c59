#include "server/listener/credentials.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/token_file.h"
#include "transport/tls_certificate.h"

namespace torch_remote::server {
namespace {

constexpr mode_t kOthers = 077;

[[noreturn]] void fail(const std::string& doing, const std::string& path, int error) {
  throw std::runtime_error(describe_errno(doing + " " + path, error) +
                           "; set XDG_STATE_HOME to a folder of yours, or give --cert and --key");
}

std::filesystem::path state_folder() {
  if (const char* const state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/')
    return std::filesystem::path(state) / "torch-remote";
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home != '/')
    throw std::runtime_error(
        "there is no folder for the server's certificate: set HOME or XDG_STATE_HOME, or give "
        "--cert and --key");
  return std::filesystem::path(home) / ".local/state/torch-remote";
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder.parent_path(), failed);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    fail("making", folder, errno);
}

// Written whole under another name first: a server that starts at the same time finds all or
// nothing. If that one was quicker, its file stays.
void make_certificate_file(const std::string& path) {
  std::string draft = path + ".XXXXXX";
  const Fd file(::mkostemp(draft.data(), O_CLOEXEC));  // mode 0600
  if (!file)
    fail("making", draft, errno);
  const std::string pem = transport::make_certificate();
  const bool is_written =
      ::write(file.get(), pem.data(), pem.size()) == static_cast<ssize_t>(pem.size());
  const bool is_named = is_written && (::link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int error = errno;
  ::unlink(draft.c_str());
  if (!is_named)
    fail("writing", path, error);
}

constexpr const char* kSetting = "--token-file";
constexpr size_t kMinToken = 16;

[[noreturn]] void fail_token(const std::string& doing, const std::string& path) {
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
    fail_token("making", path);
  return file;
}

}  // namespace

std::string find_or_make_certificate() {
  const std::filesystem::path folder = state_folder();
  const std::string path = folder / "tls.pem";

  struct stat found {};

  if (::stat(path.c_str(), &found) != 0) {
    make_folder(folder);
    make_certificate_file(path);
    log(LogLevel::kInfo, "made a certificate", {{"path", path}});
  } else if ((found.st_mode & kOthers) != 0) {
    log(LogLevel::kWarning, "others can read the key of the certificate; chmod 600 it",
        {{"path", path}});
  }
  return path;
}

std::string read_or_make_token(const std::string& given) {
  const std::string path = expand_home(given);
  if (const Fd file = make_token_file(path)) {
    const std::string line = random_hex() + "\n";
    if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      fail_token("writing", path);
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
