#include "server/listener/certificate.h"

#include <cerrno>
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

}  // namespace torch_remote::server
