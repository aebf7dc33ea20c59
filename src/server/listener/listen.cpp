#include "server/listener/listen.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
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
#include "server/listener/spares.h"
#include "server/session/handover.h"
#include "server/session/handshake.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"

namespace torch_remote::server {
namespace {

using Clock = std::chrono::steady_clock;

// Clients that are being refused inside TLS, each by a process of its own. More are closed.
constexpr size_t kMaxRefusing = 16;
// How long a new client waits for a process, from when it connected. Then the connection is closed
// and the client tries again by itself; it takes a silence of 8 s for an error.
constexpr std::chrono::milliseconds kWaitForProcess{6500};
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
    ::signal(SIGINT, SIG_IGN);
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

// Whether the client at the other end has closed the connection.
bool has_left(const Fd& client) {
  pollfd polled{client.get(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) == 1;
}

class Listener {
 public:
  Listener(ListeningSocket clients, ListeningSocket metrics, ServeOptions options,
           SessionProgram program)
      : clients_(std::move(clients)),
        metrics_(std::move(metrics)),
        options_(std::move(options)),
        spares_(std::move(program)) {}

  // Waits until a session could begin. Throws std::invalid_argument with the reason why none can.
  void prepare() {
    spares_.start_missing(0);
    while (asked_to_end == 0 && !spares_.has_ready()) {
      if (const auto failure = spares_.take_failure())
        throw std::invalid_argument(*failure);
      wait();
      reap();
      spares_.read_reports();
    }
  }

  void run() {
    is_accepting_ = true;
    while (asked_to_end == 0 && !is_due()) {
      spares_.start_missing(wanted_processes());
      wait();
      reap();
      spares_.read_reports();
      sessions_.answer_requests(options_.token);
      accept_new();
      advance();
      serve_queue();
      tell_metrics();
    }
    end_sessions();
  }

 private:
  bool is_due() {
    activity_.note(sessions_.last_use());
    const auto reason = activity_.reason_to_end(options_.limits);
    if (reason)
      log(LogLevel::kWarning, "the server ends", {{"reason", *reason}});
    return reason.has_value();
  }

  void wait() {
    polled_.clear();
    polled_.push_back({is_accepting_ ? clients_.socket.get() : -1, POLLIN, 0});
    polled_.push_back({metrics_.socket.get(), POLLIN, 0});
    for (const HalfOpen& client : half_open_)
      polled_.push_back({client.is_waiting() ? -1 : client.socket.get(), POLLIN, 0});
    spares_.add_polled(polled_);
    sessions_.add_polled(polled_);
    const timespec interval{0, std::chrono::nanoseconds(Activity::kInterval).count()};
    if (::ppoll(polled_.data(), polled_.size(), &interval, &signals_.during_wait()) < 0 &&
        errno != EINTR)
      throw_system_errno("ppoll", errno);
  }

  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (refusing_.erase(pid) == 0 && !spares_.remove(pid, status))
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
    if (sessions_.size() + queue_.size() >= options_.max_sessions &&
        !(may_evict && (sessions_.evict_unproven_session() || evict_waiting(client.peer))))
      return wait_for_room(std::move(client));
    client.deadline += kWaitForProcess - kHandshakeTime;
    queue_.push_back(std::move(client));
  }

  // Closes the connection of a waiting client, the oldest one of the peer that has most of them,
  // unless that is `newcomer`. The client tries again. False: there is none.
  bool evict_waiting(const std::string& newcomer) {
    std::vector<std::string> peers;
    for (const HalfOpen& client : queue_)
      peers.push_back(client.peer);
    if (peers.empty())
      return false;
    const size_t oldest = oldest_of_busiest(peers);
    if (peers[oldest] == newcomer)
      return false;
    queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(oldest));
    return true;
  }

  // One for each waiting client, but one at a time for all clients of a peer that has failed to
  // authenticate too often: starting a process costs much more than connecting.
  size_t wanted_processes() const {
    std::set<std::string> failed;
    size_t others = 0;
    for (const HalfOpen& client : queue_)
      if (delays_.delay_of(client.peer, Clock::now()).count() > 0)
        failed.insert(client.peer);
      else
        ++others;
    return others + failed.size();
  }

  // Gives processes that are ready to clients; refuses a client for each process that failed.
  void serve_queue() {
    std::erase_if(queue_, [](const HalfOpen& client) { return has_left(client.socket); });
    for (std::optional<std::string> failure; (failure = spares_.take_failure());)
      if (!queue_.empty())
        refuse(take_next(), "cannot start a session: " + *failure);
    while (!queue_.empty() && queue_.front().deadline < Clock::now()) {
      log(LogLevel::kWarning, "no process was ready in time for a client, which tries again",
          {{"peer", queue_.front().peer}});
      queue_.pop_front();
    }
    while (!queue_.empty() && spares_.has_ready())
      begin_session(take_next(), *spares_.take());
  }

  // The client that has waited longest of the peer with the fewest sessions that have not begun:
  // one that opens many connections waits behind the others.
  HalfOpen take_next() {
    const auto next = std::ranges::min_element(
        queue_, {}, [&](const HalfOpen& client) { return sessions_.unproven_of(client.peer); });
    HalfOpen client = std::move(*next);
    queue_.erase(next);
    return client;
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

  void begin_session(HalfOpen client, SessionProcess process) {
    Handover told;
    told.preamble = client.preamble;
    told.route = sessions_.new_route();
    told.server_start = activity_.start();
    told.listener = ::getpid();
    told.has_token = options_.token.empty() ? 0 : 1;
    random_bytes(told.secret);
    const std::string key = wire::resume_key_without_token(told.secret, options_.token);
    told.resume_key_bytes = key.copy(told.resume_key.data(), told.resume_key.size());
    const bool is_taken = hand_over(process.control, told, client.socket);
    if (!is_taken)
      ::kill(process.pid, SIGKILL);  // it is ending, or it is stopped
    log(LogLevel::kInfo, "a client gets a process",
        {{"session", wire::session_id(told.route)}, {"pid", process.pid}, {"peer", client.peer}});
    sessions_.add(std::move(process), told.route, client.peer, is_taken && told.has_token != 0);
    if (!is_taken)
      queue_.push_front(std::move(client));  // it gets the next one
  }

  // In a child: gives back everything of the listener but this connection.
  std::unique_ptr<transport::Stream> leave_listener(Fd socket) {
    signals_.restore_in_child();
    clients_.socket.reset();
    metrics_.socket.reset();
    half_open_.clear();
    queue_.clear();
    sessions_.forget();
    spares_.forget();
    ::explicit_bzero(options_.token.data(), options_.token.size());
    const std::string peer = describe_peer(socket);
    return encrypted(transport::socket_stream(std::move(socket), peer), options_.tls);
  }

  void end_sessions() {
    for (const pid_t pid : sessions_.processes())
      ::kill(pid, SIGTERM);
    for (const pid_t pid : spares_.processes())
      ::kill(pid, SIGKILL);
    clients_.remove();
    metrics_.remove();
  }

  ListeningSocket clients_;
  ListeningSocket metrics_;  // closed without --metrics
  ServeOptions options_;
  Activity activity_;
  Signals signals_;
  bool is_accepting_ = false;
  std::vector<pollfd> polled_;  // both listening sockets, then half_open_, then sessions' processes
  std::deque<HalfOpen> half_open_;
  std::deque<HalfOpen> queue_;  // new clients, until a process is ready; the oldest first
  Spares spares_;
  Sessions sessions_;
  PeerDelays delays_;
  std::set<pid_t> refusing_;  // processes of refuse_in_process()
};

}  // namespace

namespace {

void check_address(const std::string& url, const ServeOptions& options) {
  const transport::Address address = transport::parse_address(url);
  transport::check_listening(address);
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

// Whether no session may be able to begin, which the user must be told at the start.
bool may_fail_to_begin(const ServeOptions& options) {
  return !options.libraries.empty() || (options.device != "auto" && options.device != "cpu");
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
  check_address(url, options);
  if (!metrics.empty() && transport::parse_address(metrics).scheme != "unix") {
    throw std::invalid_argument("--metrics " + metrics +
                                " is refused: metrics are served on a Unix socket only");
  }
  ListeningSocket clients = ListeningSocket::open(url);
  const std::string ready = "listening on " + connect_string(clients.address, options);
  const bool must_try = may_fail_to_begin(options);
  Listener listener(std::move(clients),
                    metrics.empty() ? ListeningSocket() : ListeningSocket::open(metrics),
                    std::move(options), std::move(program));
  if (must_try)
    listener.prepare();
  std::printf("%s\n", ready.c_str());
  std::fflush(stdout);
  log(LogLevel::kInfo, ready);
  listener.run();
}

}  // namespace torch_remote::server
