#include "client/link/server_user.h"

#include <array>
#include <string>

#include <pwd.h>
#include <unistd.h>

#include "base/platform.h"

namespace torch_remote::client {
namespace {

std::string describe_user(uid_t user) {
  std::array<char, 4096> text{};
  passwd entry{};
  passwd* found = nullptr;
  const std::string number = "uid " + std::to_string(user);
  if (::getpwuid_r(user, &entry, text.data(), text.size(), &found) != 0 || found == nullptr)
    return "a user without a name (" + number + ")";
  return std::string("user ") + found->pw_name + " (" + number + ")";
}

}  // namespace

void check_server_user(const Fd& socket) {
  const std::optional<PeerProcess> server = peer_process(socket);
  const uid_t own = ::geteuid();
  if (!server)
    throw AnotherUser("the kernel does not say whose process listens there");
  if (server->uid == own || server->uid == 0)
    return;
  throw AnotherUser(
      "the process that listens there belongs to " + describe_user(server->uid) +
      ", and this one to " + describe_user(own) +
      ": without a token only a server of your own, or of root, gets your tensors. If you trust "
      "that user, start the server with --token-file and set TORCH_REMOTE_TOKEN_FILE here; if "
      "not, listen where no other user can: unix://$XDG_RUNTIME_DIR/torch-remote/gpu.sock");
}

}  // namespace torch_remote::client
