#include "client/link/open.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include <pwd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/platform.h"
#include "base/session_page.h"
#include "base/token_file.h"
#include "client/link/handshake.h"
#include "transport/address.h"
#include "transport/delay_line.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"
#include "transport/tls_context.h"
#include "transport/tls_stream.h"

namespace torch_remote::client {
namespace {

constexpr auto kDialPatience = std::chrono::seconds(10);

constexpr std::chrono::milliseconds kCommandGrace{500};

// A command whose standard input and output are the connection: Note [Relaunch] in
// server/listener/stdio.cpp.
struct Command {
  std::string url;  // of the machine, for messages
  std::vector<std::string> words;
  Mutex mutex;
  // The session may be in the first one's process: it runs until the session ends.
  Child first GUARDED_BY(mutex);
  Child latest GUARDED_BY(mutex);
  bool has_started GUARDED_BY(mutex) = false;
};

std::unique_ptr<transport::Stream> launch(Command& command) {
  auto [ours, theirs] = socket_pair();
  MutexLock lock(command.mutex);
  Child& child = std::exchange(command.has_started, true) ? command.latest : command.first;
  wait_for_end(command.first, std::chrono::milliseconds(0));
  end_child(command.latest, std::chrono::milliseconds(0));  // its connection is lost
  child = spawn_command(command.words, std::move(theirs));
  return transport::socket_stream(std::move(ours), command.url);
}

// How the latest command has failed or was killed; empty if it runs or has ended well.
std::string examine_command(Command& command) {
  MutexLock lock(command.mutex);
  Child& child = command.latest.pid > 0 ? command.latest : command.first;
  const int status = wait_for_end(child, kCommandGrace).value_or(0);
  const std::string kill = describe_kill(status);
  const std::string failure = kill.empty() ? describe_failure(status) : "was " + kill;
  return failure.empty() ? "" : "the command that carries the connection " + failure;
}

void end_command(Command& command) {
  MutexLock lock(command.mutex);
  end_child(command.latest, kCommandGrace);
  end_child(command.first, kCommandGrace);
}

// Read once, by the thread that opens the session: those that dial again must not call getenv().
std::string pretended_network() {
  const char* const net = std::getenv("TORCH_REMOTE_NET");
  if (net == nullptr || *net == '\0')
    return "";
  try {
    transport::parse_delay(net);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("TORCH_REMOTE_NET: ") + error.what());
  }
  return net;
}

std::unique_ptr<transport::Stream> with_delay(std::unique_ptr<transport::Stream> stream,
                                              const std::string& net) {
  if (net.empty())
    return stream;
  return transport::delayed(std::move(stream), transport::parse_delay(net));
}

// What to do where nobody could be reached at an address.
std::string advice_for(const transport::Address& address) {
  const std::string name = short_name(address);
  const std::string start = "start a server there with `torch-remote serve --listen " + name + "`";
  std::error_code unknown;
  if (address.scheme != "unix")
    return start + ", or check the address, the forwarded port and the firewall";
  const auto found = std::filesystem::status(address.path, unknown).type();
  if (found == std::filesystem::file_type::not_found)
    return start + ", or check the path";
  if (found != std::filesystem::file_type::socket)
    return "what is there is no socket: check the path";
  return "the server that made this socket has ended: " + start;
}

// Its errors do not say which address it is, since the error of the session does.
std::unique_ptr<transport::Stream> dial_with_advice(const Endpoint::Redial& dial,
                                                    const transport::Address& address) {
  std::string reason;
  try {
    return dial(std::chrono::steady_clock::now() + kDialPatience);
  } catch (const AnotherUser&) {
    throw;
  } catch (const transport::DialError& error) {
    reason = error.reason();
  } catch (const ConnectionError& error) {
    reason = error.what();
  }
  throw ConnectionError(reason + ". What to do: " + advice_for(address));
}

// Other users of this machine could use the server as this user does.
void check_only_ours(const TokenFile& file, const std::string& path, const std::string& url) {
  if (file.is_private)
    return;
  const std::string what = "other users can read the token file " + path;
  if (is_beyond_loopback(url)) {
    throw std::runtime_error(what + ", so it is not used for " + url + ": run `chmod 600 " + path +
                             "`, and if others use this machine make a new token on the server");
  }
  log(LogLevel::kWarning, "other users can read the token file; chmod 600 it", {{"path", path}});
}

transport::Address parse_url(const std::string& url) {
  try {
    return transport::parse_address(url);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string(error.what()) +
                                " \"local\" is a server on this machine.");
  }
}

}  // namespace

bool is_beyond_loopback(const std::string& url) {
  const transport::Address address = transport::parse_address(url);
  return address.scheme != "unix" && !transport::SocketAddress::loopback(address.host, 0);
}

Endpoint endpoint_to(const std::string& url, const std::string& server_path,
                     std::vector<std::string> embedded_options, bool has_token) {
  const std::string net = pretended_network();
  if (url == "local") {
    Endpoint embedded = embedded_server(server_path, std::move(embedded_options));
    embedded.open = [open = std::move(embedded.open), net] { return with_delay(open(), net); };
    return embedded;
  }
  Endpoint endpoint;
  endpoint.url = url;
  const transport::Address address = parse_url(url);
  const auto tls = address.scheme == "tls" ? transport::TlsContext::client(address) : nullptr;
  const auto check = address.scheme == "unix" && !has_token ? &check_server_user : nullptr;
  endpoint.redial = [address, net, tls, check](std::chrono::steady_clock::time_point deadline) {
    auto stream = with_delay(transport::dial(address, deadline, check), net);
    if (tls == nullptr)
      return stream;
    transport::TlsOptions options;
    options.read_words = read_words;
    return transport::tls_stream(std::move(stream), tls, std::move(options));
  };
  endpoint.open = [dial = endpoint.redial, address] { return dial_with_advice(dial, address); };
  endpoint.has_listener = true;
  return endpoint;
}

Endpoint endpoint_through(std::string url, std::vector<std::string> words) {
  const std::string net = pretended_network();
  auto command = std::make_shared<Command>();
  command->url = url;
  command->words = std::move(words);
  Endpoint endpoint;
  endpoint.url = std::move(url);
  endpoint.open = [command, net] { return with_delay(launch(*command), net); };
  endpoint.clean_up = [command] { end_command(*command); };
  endpoint.post_mortem = [command] { return examine_command(*command); };
  endpoint.redial = [open = endpoint.open](std::chrono::steady_clock::time_point /*deadline*/) {
    return open();
  };
  return endpoint;
}

std::string token_from_environment(const std::string& url) {
  constexpr const char* kVariable = "TORCH_REMOTE_TOKEN_FILE";
  const char* const path = std::getenv(kVariable);
  if (path != nullptr && *path != '\0') {
    TokenFile file = read_token_file(kVariable, expand_home(path));
    if (file.token.empty())
      throw std::runtime_error(std::string(kVariable) + ": there is no token in " + path);
    if (url.find("://") != std::string::npos)
      check_only_ours(file, expand_home(path), url);
    return std::move(file.token);
  }
  const char* token = std::getenv("TORCH_REMOTE_TOKEN");
  return token == nullptr ? "" : token;
}

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
