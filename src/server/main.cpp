#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/networks.h"
#include "base/platform.h"
#include "base/token_file.h"
#include "base/units.h"
#include "server/cache/cache_folder.h"
#include "server/device/devices.h"
#include "server/executor/call_log.h"
#include "server/files/shared_folders.h"
#include "server/listener/credentials.h"
#include "server/listener/listen.h"
#include "server/listener/session_program.h"
#include "server/operators/operators.h"
#include "server/session/serve.h"
#include "transport/fd_stream.h"
#include "transport/tls_context.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

struct Arguments {
  std::string listen;
  std::string token_file;
  std::string cert;
  std::string key;
  std::string client_ca;
  std::string device = "auto";
  std::string idle_timeout;
  std::string max_lifetime;
  std::string lease;
  std::string log_calls;
  std::string schemas;
  std::string metrics;
  std::string sandbox = "auto";
  std::vector<std::string> libraries;
  std::string max_memory;
  std::string cache;
  std::string cache_size;
  std::vector<std::string> files;
  size_t max_sessions = ServeOptions().max_sessions;
  size_t max_sessions_per_address = 0;
  unsigned devices = 1;
  int session_fd = -1;
  int parent_pid = 0;
  int page_fd = -1;
  bool is_stdio = false;
  std::string peer_networks;
  bool has_peers = false;
  bool only_resumes = false;
  bool is_executed = false;
};

constexpr const char* kPeersOption = "--peers";
constexpr const char* kNotShown = "";  // the group of options that --help leaves out
constexpr const char* kExamples =
    "Examples:\n"
    "  torch-remote serve --listen unix://$XDG_RUNTIME_DIR/torch-remote/gpu.sock\n"
    "  torch-remote serve --listen tls://0.0.0.0:4711 --token-file ~/.torch-remote-token\n"
    "  torch-remote serve --listen tcp://127.0.0.1:0 --token-file token --max-memory 20GiB\n\n"
    "Exit status: 0 ended by Ctrl-C, SIGTERM or a limit of time; 1 it cannot start; 2 wrong usage";

void describe(CLI::App& app, Arguments& arguments) {
  app.footer(kExamples);
  app.add_option("--listen", arguments.listen,
                 "unix:///path, tcp://127.0.0.1:PORT (0 picks one) or tls://HOST:PORT");
  app.add_flag("--stdio", arguments.is_stdio,
               "one connection over standard input and output; run again, it resumes");
  app.add_flag("--resume", arguments.only_resumes, "with --stdio: begin no new session");
  app.add_option("--session-fd", arguments.session_fd, "one session on an inherited socket")
      ->group(kNotShown);
  app.add_option("--token-file", arguments.token_file,
                 "a file with the token that clients must know; made if it is missing");
  app.add_option("--cert", arguments.cert,
                 "for tls://: PEM file with the server's certificate; default: one of its own");
  app.add_option("--key", arguments.key, "for tls://: PEM file with its key; default: in --cert");
  app.add_option("--client-ca", arguments.client_ca,
                 "for tls://: clients need a certificate that an authority in this file signed");
  app.add_option("--device", arguments.device, "auto, cpu, cuda or cuda:n")->capture_default_str();
  app.add_option("--devices", arguments.devices, "on CPU: how many devices to simulate")
      ->check(CLI::Range(1U, static_cast<unsigned>(wire::kMaxDevices)))
      ->capture_default_str();
  app.add_option("--idle-timeout", arguments.idle_timeout,
                 "end after this long without a call: 30s, 10m, 2h");
  app.add_option("--max-lifetime", arguments.max_lifetime, "end after this long: 30s, 10m, 2h");
  app.add_option(
      "--lease", arguments.lease,
      "how long a session waits for a client that was cut off; default 10m; 0: not at all");
  app.add_option("--max-sessions", arguments.max_sessions,
                 "with --listen: how many clients at once")
      ->check(CLI::Range(size_t{1}, size_t{4096}))
      ->capture_default_str();
  app.add_option("--max-sessions-per-address", arguments.max_sessions_per_address,
                 "with --listen: how many clients at once from one address, or of one user of a "
                 "Unix socket; default: three quarters of --max-sessions, and all of them from "
                 "this machine, where tunnels end")
      ->check(CLI::Range(size_t{1}, size_t{4096}));
  app.add_option("--max-memory", arguments.max_memory,
                 "what the tensors of one session may hold, as 500MiB or 20GiB; default: no limit");
  app.add_option("--cache", arguments.cache,
                 "keep uploads over 1 MiB in this folder: what a client has sent in an earlier "
                 "session is not sent again; off by default");
  app.add_option("--cache-size", arguments.cache_size,
                 "what the files in --cache may have; the least recently used are removed; default "
                 "50GiB");
  app.add_option("--files", arguments.files,
                 "clients may read the files in this folder and below; may be given again; none by "
                 "default")
      ->allow_extra_args(false)
      ->type_name("DIR");
  app.add_option("--log-calls", arguments.log_calls,
                 "write the operators that a session runs to the file FILE.SESSION")
      ->envname("TORCH_REMOTE_LOG_CALLS");
  app.add_option("--library", arguments.libraries,
                 "a shared library whose operators clients may call too; may be given again")
      ->allow_extra_args(false);
  app.add_option("--schemas", arguments.schemas,
                 "imitate the version of torch whose operators the file lists (for tests)");
  app.add_option("--metrics", arguments.metrics,
                 "unix:///path that sends the server's metrics as text to every connection");
  app.add_option(
         "--sandbox", arguments.sandbox,
         "auto: sessions give up files, sockets, programs and signals, as far as the kernel can "
         "take them; off: they keep the rights of the server's user; trace (for developers): as "
         "auto, and prints what is refused")
      ->envname("TORCH_REMOTE_SANDBOX")
      ->capture_default_str();
  app.add_option(kPeersOption, arguments.peer_networks,
                 "sessions may open TCP connections to those of other servers in these networks, "
                 "as 10.0.0.0/8,fd00::/8; default: those that this machine's interfaces are in. "
                 "Without it they open none")
      ->expected(0, 1)
      ->type_name("NETWORK,...");
  app.add_flag(kExecutedOption, arguments.is_executed,
               "a session of the listener that executes this; not for users")
      ->group(kNotShown);
  app.add_option("--parent-pid", arguments.parent_pid, "end when that process ends")
      ->group(kNotShown);
  app.add_option("--page-fd", arguments.page_fd,
                 "with --session-fd: shared memory for the session's figures and last calls")
      ->group(kNotShown);
}

LifetimeLimits limits_of(const Arguments& arguments) {
  LifetimeLimits limits;
  if (!arguments.idle_timeout.empty())
    limits.idle = parse_duration("--idle-timeout", arguments.idle_timeout);
  if (!arguments.max_lifetime.empty())
    limits.age = parse_duration("--max-lifetime", arguments.max_lifetime);
  return limits;
}

// The command line is wrong: the exit status is 2.
class UsageError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Refuses values that are wrong on every machine, before anything is read or made.
void check_usage(const Arguments& arguments) {
  try {
    static_cast<void>(limits_of(arguments));
    static_cast<void>(parse_sandbox(arguments.sandbox));
    if (!arguments.lease.empty())
      static_cast<void>(parse_duration("--lease", arguments.lease));
    if (!arguments.max_memory.empty())
      static_cast<void>(parse_bytes("--max-memory", arguments.max_memory));
    if (!arguments.cache_size.empty())
      static_cast<void>(parse_bytes("--cache-size", arguments.cache_size));
    if (arguments.cache.empty() && !arguments.cache_size.empty())
      throw UsageError("--cache-size needs --cache, the folder of the cache");
    if (!arguments.cache.empty() && arguments.session_fd >= 0)
      throw UsageError("--cache is for --listen and --stdio");
    check_device_name(arguments.device);
    if (!arguments.peer_networks.empty())
      static_cast<void>(Networks::parse(kPeersOption, arguments.peer_networks));
    if (!arguments.listen.empty())
      check_address(arguments.listen, !arguments.token_file.empty());
    if (!arguments.metrics.empty())
      check_metrics_address(arguments.metrics);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

// Empty where nothing asks for TLS.
TlsFiles tls_files_of(const Arguments& arguments) {
  TlsFiles files{expand_home(arguments.cert), expand_home(arguments.key),
                 expand_home(arguments.client_ca)};
  if (!arguments.listen.starts_with("tls://") && !arguments.is_executed) {
    if (!files.cert.empty() || !files.key.empty() || !files.client_ca.empty())
      throw UsageError("--cert, --key and --client-ca are for --listen tls://HOST:PORT");
    return files;
  }
  if (files.cert.empty() && !files.key.empty())
    throw UsageError("--key needs --cert, the certificate of that key");
  if (files.cert.empty() && !arguments.is_executed)
    files.cert = find_or_make_certificate();
  return files;
}

// Makes the folder where it is missing.
CacheOptions cache_of(const Arguments& arguments, SandboxMode sandbox) {
  CacheOptions cache;
  cache.folder = std::filesystem::absolute(expand_home(arguments.cache));
  if (!arguments.cache_size.empty())
    cache.limit = parse_bytes("--cache-size", arguments.cache_size);
  cache.is_confined = sandbox != SandboxMode::kOff;
  if (!arguments.is_executed)
    CacheFolder::open(cache.folder);
  return cache;
}

ServeOptions options_of(const Arguments& arguments) {
  ServeOptions options;
  if (!arguments.token_file.empty())
    options.token = read_or_make_token(arguments.token_file);
  options.tls_files = tls_files_of(arguments);
  const TlsFiles& files = options.tls_files;
  if (!files.cert.empty())
    options.tls = transport::TlsContext::server(files.cert, files.key, files.client_ca);
  options.device = arguments.device;
  options.simulated_devices = arguments.devices;
  options.call_log = expand_home(arguments.log_calls);
  options.parent_pid = arguments.parent_pid;
  options.libraries = arguments.libraries;
  options.limits = limits_of(arguments);
  if (!arguments.lease.empty())
    options.lease = parse_duration("--lease", arguments.lease);
  options.keepalive = duration_from_environment("TORCH_REMOTE_KEEPALIVE", options.keepalive);
  options.max_sessions = arguments.max_sessions;
  options.max_sessions_per_address = arguments.max_sessions_per_address;
  options.sandbox = parse_sandbox(arguments.sandbox);
  options.has_peers = arguments.has_peers;
  options.peer_networks = arguments.peer_networks;
  if (!arguments.max_memory.empty())
    options.max_memory = parse_bytes("--max-memory", arguments.max_memory);
  if (!arguments.cache.empty())
    options.cache = cache_of(arguments, options.sandbox);
  for (const std::string& folder : arguments.files)
    options.files.push_back(shared_folder(expand_home(folder)));
  if (!arguments.schemas.empty())
    options.schemas = read_schema_file(options.schema_path = arguments.schemas);
  return options;
}

[[noreturn]] void serve_inherited(const Arguments& arguments, ServeOptions options) {
  ::signal(SIGINT, SIG_IGN);
  Fd socket(arguments.session_fd);
  ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  SessionSetup setup;
  setup.route = new_session_route();
  setup.credentials = new_credentials(std::exchange(options.token, {}));
  if (arguments.page_fd >= 0)
    setup.page = &SessionPage::map(Fd(arguments.page_fd));
  serve_session(transport::socket_stream(std::move(socket), "the parent process"), options,
                std::nullopt, std::move(setup));
}

int run(const Arguments& arguments) {
  const int modes = (arguments.listen.empty() ? 0 : 1) + (arguments.is_stdio ? 1 : 0) +
                    (arguments.session_fd >= 0 ? 1 : 0) + (arguments.is_executed ? 1 : 0);
  if (modes != 1) {
    std::fprintf(stderr, "torch-remote serve: give one of --listen URL and --stdio\n");
    return 2;
  }
  check_usage(arguments);
  ServeOptions options = options_of(arguments);
  if (arguments.session_fd >= 0)
    serve_inherited(arguments, std::move(options));
  if (arguments.is_executed)
    serve_executed(options);
  if (arguments.is_stdio)
    serve_stdio(std::move(options), arguments.only_resumes);
  try_call_log(options.call_log);
  close_descriptors_in_programs();
  SessionProgram program = session_program(options);
  listen(arguments.listen, arguments.metrics, std::move(options), std::move(program));
  std::fflush(nullptr);
  ::_exit(0);  // torch's exit handlers have nothing to do here
}

}  // namespace
}  // namespace torch_remote::server

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);  // the reader of standard error may be gone
  CLI::App app("Runs tensor operators for torch-remote clients.", "torch-remote serve");
  torch_remote::server::Arguments arguments;
  torch_remote::server::describe(app, arguments);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "serve")
    words.erase(words.begin());
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // the order that CLI11 takes
  try {
    app.parse(reversed);
    arguments.has_peers = app.count(torch_remote::server::kPeersOption) > 0;
    return torch_remote::server::run(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help
  } catch (const torch_remote::server::UsageError& error) {
    std::fprintf(stderr, "torch-remote serve: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch-remote serve: %s\n", error.what());
    return 1;
  }
}
