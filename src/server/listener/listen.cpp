#include "server/listener/listen.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <deque>
#include <memory>
#include <set>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/peer_limits.h"
#include "base/platform.h"
#include "server/listener/half_open.h"
#include "server/listener/sessions.h"
#include "server/session/handshake.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"

namespace torch_remote::server {
namespace {

using Clock = std::chrono::steady_clock;

// Clients that are being refused inside TLS, each by a process of its own. More are closed.
constexpr size_t kMaxRefusing = 16;
// How long a new client waits while all sessions are taken: when a program stops a session and
// begins the next at once, the process of the first has not ended yet.
constexpr std::chrono::seconds kWaitForRoom{2};

volatile std::sig_atomic_t asked_to_end = 0;

// Signals are only delivered inside ppoll(), so none is missed between a check and a wait.
class Signals {
 public:
  Signals() {
    struct sigaction action {};

    action.sa_handler = [](int signal) {
      if (signal != SIGCHLD)
        asked_to_end = 1;
    };
    sigset_t held;
    sigemptyset(&held);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) {
      ::sigaction(signal, &action, nullptr);
      sigaddset(&held, signal);
    }
    ::sigprocmask(SIG_BLOCK, &held, &before_);
  }

  const sigset_t& during_wait() const { return before_; }

  void restore_in_child() const {
    for (const int signal : {SIGCHLD, SIGTERM})
      ::signal(signal, SIG_DFL);
    ::signal(SIGINT, SIG_IGN);  // Ctrl-C ends the listener, which ends its sessions
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_{};
};

// A listening socket whose accept() never blocks: a client may hang up before it is accepted.
struct ListeningSocket {
  transport::Address address;
  Fd socket;

  static ListeningSocket open(const std::string& url) {
    ListeningSocket opened{transport::parse_address(url), Fd()};
    opened.socket = transport::listen_on(opened.address);
    ::fcntl(opened.socket.get(), F_SETFL, ::fcntl(opened.socket.get(), F_GETFL) | O_NONBLOCK);
    return opened;
  }

  // Empty: the client hung up, or descriptors ran out. The next round tries again.
  Fd accept() const { return Fd(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

  void remove() const {
    if (address.scheme == "unix")
      ::unlink(address.path.c_str());
  }
};

ServeOptions with_listener(ServeOptions options, const LifetimeLimits& limits) {
  options.limits = limits;
  options.listener = ::getpid();
  return options;
}

class Listener {
 public:
  Listener(ListeningSocket clients, ListeningSocket metrics, const ServeOptions& options,
           const LifetimeLimits& limits)
      : clients_(std::move(clients)),
        metrics_(std::move(metrics)),
        options_(with_listener(options, limits)),
        limits_(limits),
        activity_(Activity::make_shared_memory()) {}

  void run() {
    while (asked_to_end == 0 && !is_due()) {
      wait();
      reap();
      accept_new();
      advance();
      tell_metrics();
    }
    end_sessions();
  }

 private:
  bool is_due() const {
    const auto reason = activity_.reason_to_end(limits_);
    if (reason)
      log(LogLevel::kWarning, "the server ends", {{"reason", *reason}});
    return reason.has_value();
  }

  void wait() {
    polled_.clear();
    polled_.push_back({clients_.socket.get(), POLLIN, 0});
    polled_.push_back({metrics_.socket.get(), POLLIN, 0});
    for (const HalfOpen& client : half_open_)
      polled_.push_back({client.is_waiting() ? -1 : client.socket.get(), POLLIN, 0});
    const timespec interval{0, std::chrono::nanoseconds(Activity::kInterval).count()};
    if (::ppoll(polled_.data(), polled_.size(), &interval, &signals_.during_wait()) < 0 &&
        errno != EINTR)
      throw_system_errno("ppoll", errno);
  }

  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (refusing_.erase(pid) == 0)
        note_exit(sessions_.remove(pid, status), status);
  }

  void note_exit(const std::string& peer, int status) {
    if (!WIFEXITED(status))
      return;
    if (WEXITSTATUS(status) == static_cast<int>(SessionExit::kClosed))
      delays_.note_success(peer);
    if (WEXITSTATUS(status) != static_cast<int>(SessionExit::kNotAuthenticated))
      return;
    sessions_.note_refusal();
    delays_.note_failure(peer, Clock::now());
    if (delays_.delay_of(peer, Clock::now()).count() > 0)
      log(LogLevel::kWarning, "too many failed authentications; this peer waits", {{"peer", peer}});
  }

  void accept_new() {
    if ((polled_[0].revents & POLLIN) == 0)
      return;
    Fd client = clients_.accept();
    if (!client)
      return;
    if (!add(half_open_, HalfOpen(std::move(client), Clock::now() + kHandshakeTime), kMaxHalfOpen))
      log(LogLevel::kWarning, "too many connections without a preamble; dropping the oldest");
  }

  // Sends without waiting, as much as the socket's buffer takes.
  void tell_metrics() {
    if ((polled_[1].revents & POLLIN) == 0)
      return;
    const Fd reader = metrics_.accept();
    const std::string text = sessions_.metrics();
    ::send(reader.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void advance() {
    const size_t count = half_open_.size();
    for (size_t i = 0; i < count; ++i) {
      HalfOpen client = std::move(half_open_.front());
      half_open_.pop_front();
      const HalfOpen::Progress progress = client.read();
      if (progress == HalfOpen::Progress::kComplete)
        route(std::move(client));
      else if (progress == HalfOpen::Progress::kWaiting && Clock::now() < client.deadline)
        half_open_.push_back(std::move(client));
      else if (!client.is_refused)
        log(LogLevel::kInfo, "a connection ended before its preamble");
    }
  }

  void route(HalfOpen client) {
    wire::Preamble preamble;
    try {
      preamble = wire::decode_preamble(client.preamble);
    } catch (const ProtocolError& error) {
      log(LogLevel::kWarning, "a connection was refused",
          {{"peer", describe_peer(client.socket)}, {"reason", error.what()}});
      return sessions_.note_refusal();
    }
    if (preamble.intent == 1)
      return pass_on(std::move(client), preamble.route);
    if (must_wait(client))
      return half_open_.push_back(std::move(client));
    reap();  // a session that has just ended leaves room
    // A client evicts at most once: a later eviction might hit another client that was just let in.
    const bool may_evict = !client.room_by;
    if (sessions_.size() >= options_.max_sessions &&
        !(may_evict && sessions_.evict_unproven_session()))
      return wait_for_room(std::move(client));
    begin_session(std::move(client), preamble);
  }

  // A peer that has failed too often waits before each new session, and no other peer does.
  bool must_wait(HalfOpen& client) const {
    if (!client.served_at)
      client.served_at = Clock::now() + delays_.delay_of(client.peer, Clock::now());
    return Clock::now() < *client.served_at;
  }

  void wait_for_room(HalfOpen client) {
    if (!client.room_by)
      client.room_by = Clock::now() + kWaitForRoom;
    if (Clock::now() < *client.room_by)
      return half_open_.push_back(std::move(client));
    const size_t most = options_.max_sessions;
    refuse(std::move(client), "this server has " + std::to_string(most) +
                                  (most == 1 ? " session" : " sessions") +
                                  ", and takes no more (--max-sessions)");
  }

  // The session's process finds out whether this is its client.
  void pass_on(HalfOpen client, uint64_t route) {
    const Fd* const control = sessions_.find(route);
    if (control == nullptr)
      return refuse(std::move(client), sessions_.describe_missing(route));
    // A session that does not take it is ending or stopped; the client tries again.
    pass_descriptors(*control, client.preamble, std::array{client.socket.get()});
  }

  void refuse(HalfOpen client, const std::string& reason) {
    sessions_.note_refusal();
    log(LogLevel::kWarning, "a connection was refused",
        {{"peer", describe_peer(client.socket)}, {"reason", reason}});
    if (options_.tls != nullptr)
      return refuse_in_process(std::move(client), reason);
    const std::vector<std::byte> block = refusal_block(reason);
    ::send(client.socket.get(), block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::shutdown(client.socket.get(), SHUT_WR);
    client.is_refused = true;
    client.room_by.reset();
    client.served_at.reset();
    half_open_.push_back(std::move(client));
  }

  // The listener does not speak TLS, which takes time and looks at bytes of the peer.
  void refuse_in_process(HalfOpen client, const std::string& reason) {
    if (refusing_.size() >= kMaxRefusing)
      return;
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid > 0)
      refusing_.insert(pid);
    if (pid != 0)
      return;
    const wire::Preamble preamble = wire::decode_preamble(client.preamble);
    const auto stream = leave_listener(std::move(client.socket));
    try {
      refuse_in_tls(*stream, preamble, reason);
    } catch (const std::exception& error) {
      log(LogLevel::kInfo, "refusing a client failed", {{"reason", error.what()}});
    }
    ::_exit(0);
  }

  void begin_session(HalfOpen client, const wire::Preamble& preamble) {
    Sessions::New session;
    try {
      session = sessions_.prepare(client.peer);
    } catch (const std::system_error& error) {
      return refuse(std::move(client), std::string("cannot start a session: ") + error.what());
    }
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid < 0) {
      log(LogLevel::kError, "cannot start a session", {{"reason", describe_errno("fork", errno)}});
      return sessions_.discard(std::move(session));
    }
    if (pid == 0) {
      session.control.reset();
      serve_session(leave_listener(std::move(client.socket)), options_, preamble, activity_,
                    std::move(session.place));
    }
    sessions_.add(pid, std::move(session));
  }

  // In a child: gives back everything of the listener but this connection.
  std::unique_ptr<transport::Stream> leave_listener(Fd socket) {
    signals_.restore_in_child();
    clients_.socket.reset();
    metrics_.socket.reset();
    half_open_.clear();
    sessions_.forget();
    const std::string peer = describe_peer(socket);
    return encrypted(transport::socket_stream(std::move(socket), peer), options_.tls);
  }

  void end_sessions() {
    for (const pid_t pid : sessions_.processes())
      ::kill(pid, SIGTERM);
    clients_.remove();
    metrics_.remove();
  }

  ListeningSocket clients_;
  ListeningSocket metrics_;  // closed without --metrics
  const ServeOptions options_;
  const LifetimeLimits limits_;
  Activity& activity_;
  Signals signals_;
  std::vector<pollfd> polled_;  // both listening sockets, then half_open_
  std::deque<HalfOpen> half_open_;
  Sessions sessions_;
  PeerDelays delays_;
  std::set<pid_t> refusing_;  // processes of refuse_in_process()
};

}  // namespace

namespace {

void check_address(const std::string& url, const ServeOptions& options) {
  const transport::Address address = transport::parse_address(url);
  if (address.scheme != "unix" && options.token.empty()) {
    throw std::invalid_argument(
        "refusing to listen on " + url +
        " without a token: add --token-file FILE (it is made if it is missing)");
  }
  if ((address.scheme == "tls") != (options.tls != nullptr))
    throw std::invalid_argument("TLS is for tls:// addresses, and they need it; got " + url);
  if (to_string(address) != short_name(address)) {
    throw std::invalid_argument("the options of " + url +
                                " are for clients; a server has --cert, --key and --client-ca");
  }
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

void listen(const std::string& url, const std::string& metrics, const ServeOptions& options,
            const LifetimeLimits& limits) {
  check_address(url, options);
  if (!metrics.empty() && transport::parse_address(metrics).scheme != "unix") {
    throw std::invalid_argument("--metrics " + metrics +
                                " is refused: metrics are served on a Unix socket only");
  }
  ListeningSocket clients = ListeningSocket::open(url);
  const std::string ready = "listening on " + connect_string(clients.address, options);
  Listener listener(std::move(clients),
                    metrics.empty() ? ListeningSocket() : ListeningSocket::open(metrics), options,
                    limits);
  std::printf("%s\n", ready.c_str());
  std::fflush(stdout);
  log(LogLevel::kInfo, ready);
  listener.run();
}

}  // namespace torch_remote::server
