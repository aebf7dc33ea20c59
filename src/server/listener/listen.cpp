#include "server/listener/listen.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <deque>
#include <optional>
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
#include "base/platform.h"
#include "server/listener/sessions.h"
#include "server/session/handshake.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

using Clock = std::chrono::steady_clock;

// After this many failed authentications in a row, no connection is accepted for a second.
constexpr int kFailuresBeforePause = 5;
constexpr std::chrono::seconds kPause{1};
// How long a new client waits while all sessions are taken: when a program stops a session and
// begins the next at once, the process of the first has not ended yet.
constexpr std::chrono::seconds kWaitForRoom{2};

volatile std::sig_atomic_t asked_to_end = 0;

struct HalfOpen {
  Fd socket;
  Clock::time_point deadline;
  std::array<std::byte, wire::kPreambleBytes> preamble{};
  size_t received = 0;
  bool is_refused = false;  // the reason is sent; it has time to read it
  // Set when its preamble is read but all sessions are taken: when to stop waiting.
  std::optional<Clock::time_point> room_by = std::nullopt;
};

enum class Progress { kWaiting, kComplete, kGone };

// Closing a socket with unread bytes would reset the connection before the client reads the reason.
Progress wait_for_close(HalfOpen& client) {
  std::array<std::byte, wire::kMaxHandshakeBytes> unread;
  const ssize_t got = ::recv(client.socket.get(), unread.data(), unread.size(), MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)) ? Progress::kWaiting
                                                                     : Progress::kGone;
}

Progress read_preamble(HalfOpen& client) {
  while (client.received < client.preamble.size()) {
    const ssize_t got = ::recv(client.socket.get(), client.preamble.data() + client.received,
                               client.preamble.size() - client.received, MSG_DONTWAIT);
    if (got == 0)
      return Progress::kGone;
    if (got < 0)
      return errno == EAGAIN || errno == EINTR ? Progress::kWaiting : Progress::kGone;
    client.received += static_cast<size_t>(got);
  }
  return Progress::kComplete;
}

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
    ListeningSocket door{transport::parse_address(url), Fd()};
    door.socket = transport::listen_on(door.address);
    ::fcntl(door.socket.get(), F_SETFL, ::fcntl(door.socket.get(), F_GETFL) | O_NONBLOCK);
    return door;
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

  bool accepts() const { return Clock::now() >= paused_until_; }

  void wait() {
    polled_.clear();
    polled_.push_back({accepts() ? clients_.socket.get() : -1, POLLIN, 0});
    polled_.push_back({metrics_.socket.get(), POLLIN, 0});
    for (const HalfOpen& client : half_open_)
      polled_.push_back({client.room_by ? -1 : client.socket.get(), POLLIN, 0});
    const timespec interval{0, std::chrono::nanoseconds(Activity::kInterval).count()};
    if (::ppoll(polled_.data(), polled_.size(), &interval, &signals_.during_wait()) < 0 &&
        errno != EINTR) {
      throw_system_errno("ppoll", errno);
    }
  }

  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      sessions_.remove(pid, status);
      note_exit(status);
    }
  }

  void note_exit(int status) {
    const bool was_refused =
        WIFEXITED(status) &&
        WEXITSTATUS(status) == static_cast<int>(SessionExit::kNotAuthenticated);
    if (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(SessionExit::kClosed))
      failures_ = 0;
    if (!was_refused)
      return;
    sessions_.note_refusal();
    if (++failures_ < kFailuresBeforePause)
      return;
    paused_until_ = Clock::now() + kPause;
    log(LogLevel::kWarning, "too many wrong tokens; pausing", {{"failures", failures_}});
  }

  void accept_new() {
    if ((polled_[0].revents & POLLIN) == 0)
      return;
    Fd client = clients_.accept();
    if (!client)
      return;
    if (half_open_.size() >= kMaxHalfOpen) {
      log(LogLevel::kWarning, "too many connections without a preamble; dropping the oldest");
      const auto silent = std::find_if(half_open_.begin(), half_open_.end(),
                                       [](const HalfOpen& one) { return !one.room_by; });
      half_open_.erase(silent == half_open_.end() ? half_open_.begin() : silent);
    }
    half_open_.push_back({std::move(client), Clock::now() + kHandshakeTime});
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
      const Progress progress = client.is_refused ? wait_for_close(client) : read_preamble(client);
      if (progress == Progress::kComplete) {
        route(std::move(client));
      } else if (progress == Progress::kWaiting && Clock::now() < client.deadline) {
        half_open_.push_back(std::move(client));
      } else if (!client.is_refused) {
        log(LogLevel::kInfo, "a connection ended before its preamble");
      }
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
    reap();  // a session that has just ended leaves room
    // A client evicts at most once: a later eviction might hit another client that was just let in.
    const bool may_evict = !client.room_by;
    if (sessions_.size() >= options_.max_sessions &&
        !(may_evict && sessions_.evict_unproven_session()))
      return wait_for_room(std::move(client));
    begin_session(std::move(client), preamble);
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
    const std::vector<std::byte> block = refusal_block(reason);
    ::send(client.socket.get(), block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::shutdown(client.socket.get(), SHUT_WR);
    client.is_refused = true;
    client.room_by.reset();
    half_open_.push_back(std::move(client));
  }

  void begin_session(HalfOpen client, const wire::Preamble& preamble) {
    Sessions::New session;
    try {
      session = sessions_.prepare();
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
      become_session(std::move(client.socket), preamble, std::move(session.place));
    }
    sessions_.add(pid, std::move(session));
  }

  [[noreturn]] void become_session(Fd socket, const wire::Preamble& preamble, SessionPlace place) {
    signals_.restore_in_child();
    clients_.socket.reset();
    metrics_.socket.reset();
    half_open_.clear();
    sessions_.forget();
    const std::string peer = describe_peer(socket);
    serve_session(transport::socket_stream(std::move(socket), peer), options_, preamble, activity_,
                  std::move(place));
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
  int failures_ = 0;
  Clock::time_point paused_until_;
};

}  // namespace

void listen(const std::string& url, const std::string& metrics, const ServeOptions& options,
            const LifetimeLimits& limits) {
  if (transport::parse_address(url).scheme != "unix" && options.token.empty()) {
    throw std::invalid_argument(
        "refusing to listen on " + url +
        " without a token: add --token-file FILE (it is made if it is missing)");
  }
  if (!metrics.empty() && transport::parse_address(metrics).scheme != "unix") {
    throw std::invalid_argument("--metrics " + metrics +
                                " is refused: metrics are served on a Unix socket only");
  }
  ListeningSocket clients = ListeningSocket::open(url);
  const std::string ready = "listening on " + to_string(clients.address);
  Listener listener(std::move(clients),
                    metrics.empty() ? ListeningSocket() : ListeningSocket::open(metrics), options,
                    limits);
  std::printf("%s\n", ready.c_str());
  std::fflush(stdout);
  log(LogLevel::kInfo, ready);
  listener.run();
}

}  // namespace torch_remote::server
