#include "client/session/open.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include <unistd.h>

#include <ATen/Parallel.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/platform.h"
#include "base/session_page.h"
#include "base/token_file.h"
#include "transport/delay_line.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"
#include "transport/socket_address.h"
#include "transport/tls_context.h"
#include "transport/tls_stream.h"

namespace torch_remote::client {
namespace {

constexpr auto kDialPatience = std::chrono::seconds(10);

constexpr std::chrono::milliseconds kGrace{500};
// How many of the last calls an error lists.
constexpr size_t kCallsInError = 8;

// The embedded server's process, once it is started.
struct Embedded {
  Mutex mutex;
  Child child GUARDED_BY(mutex);
  int status GUARDED_BY(mutex) = 0;  // from waitpid(), once it has ended
  SessionPage::View page GUARDED_BY(mutex);
};

// The server ends when its socket closes; if it does not (stopped, or in an operator) it is killed.
void end_embedded(Embedded& embedded) {
  MutexLock lock(embedded.mutex);
  end_child(embedded.child, kGrace);
}

// How the process was killed and its last calls; empty if it was not killed.
std::string examine_embedded(Embedded& embedded) {
  MutexLock lock(embedded.mutex);
  if (const auto status = wait_for_end(embedded.child, kGrace))
    embedded.status = *status;
  if (embedded.page == nullptr || embedded.child.pid > 0)
    return {};
  const std::string kill = describe_kill(embedded.status);
  if (kill.empty())
    return {};
  const std::string calls = embedded.page->last_calls(kCallsInError);
  return "the embedded server was " + kill + (calls.empty() ? "" : "; its last: " + calls);
}

// TORCH_REMOTE_LIBRARY, for the embedded server. Separated by colons, as in PATH.
std::vector<std::string> libraries_from_environment() {
  const char* value = std::getenv("TORCH_REMOTE_LIBRARY");
  std::istringstream list(value == nullptr ? "" : value);
  std::vector<std::string> libraries;
  for (std::string library; std::getline(list, library, ':');)
    if (!library.empty())
      libraries.push_back(library);
  return libraries;
}

std::unique_ptr<transport::Stream> start_embedded(const std::string& path,
                                                  const std::vector<std::string>& options,
                                                  int threads, Embedded& embedded) {
  auto [ours, theirs] = socket_pair();
  std::vector<std::string> arguments = {
      "torch-remote-server", "serve",
      "--session-fd",        std::to_string(kInheritedDescriptor),
      "--parent-pid",        std::to_string(getpid()),
      "--page-fd",           std::to_string(kInheritedDescriptor + 1)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const std::string& library : libraries_from_environment()) {
    arguments.push_back("--library");
    arguments.push_back(library);
  }
  // OpenMP reads its number of threads once, before the first CONTEXT message.
  std::vector<Fd> inherited;
  inherited.push_back(std::move(theirs));
  inherited.push_back(SessionPage::make_memory());
  SessionPage::View page = SessionPage::view(inherited.back());
  Child child = spawn_server(path, arguments, {{"OMP_NUM_THREADS", std::to_string(threads)}},
                             std::move(inherited));
  MutexLock lock(embedded.mutex);
  embedded.child = std::move(child);
  embedded.page = std::move(page);
  return transport::socket_stream(std::move(ours), "the embedded server");
}

// A command whose standard input and output are the connection: Note [Relaunch] in
// server/listener/stdio.cpp.
struct Command {
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
  return transport::socket_stream(std::move(ours), command.words.front());
}

void end_command(Command& command) {
  MutexLock lock(command.mutex);
  end_child(command.latest, kGrace);
  end_child(command.first, kGrace);
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

std::unique_ptr<transport::Stream> dial_with_advice(const Endpoint::Redial& dial,
                                                    const transport::Address& address) {
  try {
    return dial(std::chrono::steady_clock::now() + kDialPatience);
  } catch (const ConnectionError& error) {
    throw ConnectionError(std::string(error.what()) + ". What to do: " + advice_for(address));
  }
}

bool is_beyond_loopback(const std::string& url) {
  const transport::Address address = transport::parse_address(url);
  return address.scheme != "unix" && !transport::SocketAddress::loopback(address.host, 0);
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

Endpoint endpoint_to(const std::string& url, const std::string& server_path,
                     std::vector<std::string> embedded_options) {
  const std::string net = pretended_network();
  Endpoint endpoint;
  endpoint.url = url;
  if (url == "local") {
    const int threads = at::get_num_threads();
    auto embedded = std::make_shared<Embedded>();
    endpoint.open = [server_path, options = std::move(embedded_options), threads, embedded, net] {
      return with_delay(start_embedded(server_path, options, threads, *embedded), net);
    };
    endpoint.clean_up = [embedded] { end_embedded(*embedded); };
    endpoint.post_mortem = [embedded] { return examine_embedded(*embedded); };
    endpoint.has_our_torch = true;
    return endpoint;
  }
  const transport::Address address = parse_url(url);
  const auto tls = address.scheme == "tls" ? transport::TlsContext::client(address) : nullptr;
  endpoint.redial = [address, net, tls](std::chrono::steady_clock::time_point deadline) {
    auto stream = with_delay(transport::dial(address, deadline), net);
    return tls == nullptr ? std::move(stream) : transport::tls_stream(std::move(stream), tls);
  };
  endpoint.open = [dial = endpoint.redial, address] { return dial_with_advice(dial, address); };
  endpoint.has_listener = true;
  return endpoint;
}

Endpoint endpoint_through(std::string url, std::vector<std::string> words) {
  const std::string net = pretended_network();
  auto command = std::make_shared<Command>();
  command->words = std::move(words);
  Endpoint endpoint;
  endpoint.url = std::move(url);
  endpoint.open = [command, net] { return with_delay(launch(*command), net); };
  endpoint.clean_up = [command] { end_command(*command); };
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

}  // namespace torch_remote::client
