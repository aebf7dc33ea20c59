#include "server/listener/listen.h"

#include <cstdio>
#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "base/platform.h"
#include "server/listener/listener.h"
#include "server/listener/listening_socket.h"
#include "transport/dial.h"

namespace torch_remote::server {

void check_address(const std::string& url, bool has_token) {
  const transport::Address address = transport::parse_address(url);
  transport::check_listening(address);
  if (address.scheme != "unix" && !has_token) {
    throw std::invalid_argument(
        "refusing to listen on " + url +
        " without a token: add --token-file FILE (it is made if it is missing)");
  }
  if (to_string(address) != short_name(address)) {
    throw std::invalid_argument("the options of " + url +
                                " are for clients; a server has --cert, --key and --client-ca");
  }
}

void check_metrics_address(const std::string& url) {
  if (!url.starts_with("unix:///")) {
    throw std::invalid_argument(
        "--metrics " + url +
        " is refused: metrics are served on a Unix socket only; write unix:///path");
  }
  static_cast<void>(transport::parse_address(url));
}

namespace {

// Whether no session may be able to begin, which the user must be told at the start.
bool may_fail_to_begin(const ServeOptions& options) {
  return !options.libraries.empty() || (options.device != "auto" && options.device != "cpu");
}

void log_sandbox(const ServeOptions& options) {
  const Sandbox sandbox = expected_sandbox(options.sandbox, needs_of(options));
  const bool is_whole = sandbox.mode != SandboxMode::kOff && sandbox.lacks.empty();
  log(is_whole ? LogLevel::kInfo : LogLevel::kWarning, "sandbox of sessions",
      {{"sandbox", sandbox.describe()}});
}

// What a client connects to: with the pin, and with this machine's name for "every address".
std::string connect_string(transport::Address address, const ServeOptions& options) {
  if (options.tls != nullptr)
    address.pin = options.tls->own_pin();
  if (address.host == "0.0.0.0" || address.host == "::")
    address.host = hostname();
  return to_string(address);
}

}  // namespace

void listen(const std::string& url, const std::string& metrics, ServeOptions options,
            SessionProgram program) {
  check_address(url, !options.token.empty());
  if (url.starts_with("tls://") != (options.tls != nullptr))
    throw std::invalid_argument("TLS is for tls:// addresses, and they need it; got " + url);
  if (!metrics.empty())
    check_metrics_address(metrics);
  raise_descriptor_limit();
  ListeningSocket clients(url);
  const std::string ready = "listening on " + connect_string(clients.address(), options);
  const bool must_try = may_fail_to_begin(options);
  log_sandbox(options);
  Listener listener(std::move(clients),
                    metrics.empty() ? ListeningSocket() : ListeningSocket(metrics),
                    std::move(options), std::move(program));
  if (must_try)
    listener.prepare();
  std::printf("%s\n", ready.c_str());
  std::fflush(stdout);
  log(LogLevel::kInfo, ready);
  listener.run();
}

}  // namespace torch_remote::server
