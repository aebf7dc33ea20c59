#include "server/listener/listener.h"

#include <cerrno>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <utility>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/listener/half_open.h"
#include "server/session/handover.h"
#include "server/session/sandbox.h"

namespace torch_remote::server {
namespace {

// The part of a first message stays in its socket, so that poll() would return at once each time.
// The listener looks at it that often.
constexpr std::chrono::milliseconds kLookAgain{10};

}  // namespace

Listener::Listener(ListeningSocket clients, ListeningSocket metrics, ServeOptions options,
                   SessionProgram program)
    : clients_(std::move(clients)),
      metrics_(std::move(metrics)),
      options_(std::move(options)),
      call_logs_(options_.call_log, options_.max_sessions, log_),
      spares_(std::move(program), logs_, log_),
      sessions_(expected_sandbox(options_.sandbox, needs_of(options_)).describe(), log_) {}

void Listener::prepare() {
  spares_.start_missing(0);
  while (!EndSignals::asked_to_end() && !spares_.has_ready()) {
    if (const auto failure = spares_.take_failure())
      throw std::invalid_argument(*failure);
    wait();
    logs_.read(polled_);
    reap();
    spares_.read_reports();
  }
}

void Listener::run() {
  is_accepting_ = true;
  while (!EndSignals::asked_to_end() && !is_due()) {
    spares_.start_missing(queue_.wanted_processes(delays_, sessions_, Clock::now()));
    wait();
    logs_.read(polled_);
    for (const std::string& peer : sessions_.note_begun())
      delays_.note_success(peer);
    reap();
    sessions_.end_excessive();
    spares_.read_reports();
    sessions_.answer_requests(options_.token);
    accept_new();
    advance();
    serve_queue();
    tell_metrics();
    log_.tell_left_out();
  }
  log_.tell_left_out(true);
  end_sessions();
}

bool Listener::is_due() {
  activity_.note(sessions_.last_use());
  const auto reason = activity_.reason_to_end(options_.limits);
  if (!reason)
    return false;
  end_reason_ = *reason;
  log(LogLevel::kWarning, "the server ends", {{"reason", describe_end(*reason, options_.limits)}});
  return true;
}

void Listener::wait() {
  const Clock::time_point now = Clock::now();
  polled_.clear();
  polled_.push_back({is_accepting_ ? clients_.polled(now) : -1, POLLIN, 0});
  polled_.push_back({metrics_.polled(now), POLLIN, 0});
  std::chrono::nanoseconds time = Activity::kInterval;
  for (const HalfOpen& client : half_open_) {
    polled_.push_back({client.is_polled() ? client.socket.get() : -1, POLLIN, 0});
    if (client.has_part)
      time = kLookAgain;
  }
  spares_.add_polled(polled_);
  sessions_.add_polled(polled_);
  logs_.add_polled(polled_);
  const timespec interval{0, time.count()};
  if (::ppoll(polled_.data(), polled_.size(), &interval, &signals_.during_wait()) < 0 &&
      errno != EINTR)
    throw_system_errno("ppoll", errno);
}

void Listener::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    logs_.end(pid);
    call_logs_.end(pid);
    if (refusing_.erase(pid) == 0 && !spares_.remove(pid, status))
      note_exit(sessions_.remove(pid, status));
  }
}

void Listener::note_exit(const Sessions::Ended& ended) {
  if (ended.peer.empty() || !ended.is_stranger)
    return;
  sessions_.note_refusal();
  log_.write(LogLevel::kWarning, "a client was refused",
             {{"peer", ended.peer}, {"reason", ended.reason}});
  note_stranger(ended.peer);
}

void Listener::note_stranger(const std::string& peer) {
  delays_.note_failure(peer, Clock::now());
  if (delays_.delay_of(peer, Clock::now()).count() > 0)
    log_.write(LogLevel::kWarning,
               "five connections of this peer ended without a proof; its next ones wait",
               {{"peer", peer}});
}

void Listener::accept_new() {
  if ((polled_[0].revents & POLLIN) == 0)
    return;
  const Clock::time_point now = Clock::now();
  Fd client = clients_.accept(now);
  const bool is_last = is_among_last(client);
  if (clients_.rests(now) || is_last)
    shed();
  if (!client)
    return;
  if (is_last)
    client = renumbered(std::move(client));
  HalfOpen accepted(std::move(client), options_.tls != nullptr, Clock::now() + kHandshakeTime);
  if (note_dropped(add_one(half_open_, std::move(accepted))))
    log_.write(LogLevel::kWarning,
               "too many connections wait or have sent no first message; one is ended");
}

bool Listener::note_dropped(const std::optional<HalfOpen>& dropped) {
  if (dropped && !dropped->is_whole)
    note_stranger(dropped->peer);
  return dropped.has_value();
}

void Listener::shed() {
  const bool has_dropped = note_dropped(drop_one(half_open_));
  if (has_dropped)
    clients_.end_rest();
  log_.write(LogLevel::kError,
             has_dropped ? "too few descriptors are free (ulimit -n); a connection that had "
                           "not begun a session was ended"
                         : "too few descriptors are free (ulimit -n); new clients "
                           "wait or are refused",
             {{"sessions", sessions_.size()}});
}

// Sends without waiting, as much as the socket's buffer takes.
void Listener::tell_metrics() {
  if ((polled_[1].revents & POLLIN) == 0)
    return;
  const Fd reader = metrics_.accept(Clock::now());
  if (!reader)
    return;
  const std::string text = sessions_.metrics();
  ::send(reader.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Listener::advance() {
  const size_t count = half_open_.size();
  for (size_t i = 0; i < count; ++i) {
    HalfOpen client = std::move(half_open_.front());
    half_open_.pop_front();
    advance(std::move(client));
  }
}

void Listener::advance(HalfOpen client) {
  HalfOpen::Progress progress = HalfOpen::Progress::kGone;
  try {
    progress = client.read();
  } catch (const ProtocolError& error) {
    return refuse_stranger(std::move(client), error.what());
  }
  if (progress == HalfOpen::Progress::kComplete)
    return route(std::move(client));
  if (progress == HalfOpen::Progress::kWaiting && Clock::now() < client.deadline)
    return half_open_.push_back(std::move(client));
  if (client.is_refused)
    return;
  log_.write(LogLevel::kInfo,
             client.is_whole ? "a client left while it waited"
                             : "a connection ended before its first message",
             {{"peer", client.peer}});
  note_stranger(client.peer);
}

void Listener::serve_queue() {
  for (const std::string& peer : queue_.drop_departed())
    note_stranger(peer);
  for (std::optional<std::string> failure; (failure = spares_.take_failure());)
    if (auto client = queue_.take_next(sessions_))
      refuse(std::move(*client), "cannot start a session: " + *failure);
  if (const size_t clients = queue_.tell_waiting(Clock::now()); clients > 0)
    log_.write(LogLevel::kWarning, "no process is ready for a client, which waits",
               {{"clients", clients}});
  while (spares_.has_ready()) {
    auto client = queue_.take_next(sessions_);
    if (!client)
      return;
    if (!begin_session(std::move(*client), *spares_.take()))
      return;
  }
}

bool Listener::begin_session(HalfOpen client, SessionProcess process) {
  Handover told;
  told.preamble = client.preamble;
  told.route = sessions_.new_route();
  told.server_start = activity_.start();
  told.listener = ::getpid();
  told.has_token = options_.token.empty() ? 0 : 1;
  random_bytes(told.secret);
  told.cache_owner = wire::cache_owner(options_.token, client.peer);
  const std::string key = wire::resume_key_without_token(told.secret, options_.token);
  told.resume_key_bytes = key.copy(told.resume_key.data(), told.resume_key.size());
  const std::string id = wire::session_id(told.route);
  const Fd call_log = call_logs_.begin(process.pid, id);
  logs_.begin_session(process.pid, id, client.peer);  // before it can write a line
  const Passed passed = hand_over(process.control, told, client.socket, call_log);
  if (passed == Passed::kFull) {
    logs_.end_session(process.pid, Spares::log_name(process.pid));
    call_logs_.end(process.pid);
    log_.write(LogLevel::kError,
               "too many descriptors of this user are on their way; new clients wait");
    spares_.give_back(std::move(process));
    queue_.add_first(std::move(client));
    return false;
  }
  const bool is_taken = passed == Passed::kSent;
  if (!is_taken)
    ::kill(process.pid, SIGKILL);  // it is ending, or it is stopped
  log_.write(LogLevel::kInfo, "a client gets a process",
             {{"session", id}, {"pid", process.pid}, {"peer", client.peer}});
  // A process that is ending is nobody's, so that its end counts against no peer.
  sessions_.add(std::move(process), told.route, is_taken ? client.peer : "",
                is_taken && told.has_token != 0);
  if (!is_taken)
    queue_.add_first(std::move(client));  // it gets the next one
  return true;
}

void Listener::end_sessions() {
  constexpr std::chrono::seconds kTimeToEnd{1};
  sigval reason{};
  reason.sival_int = static_cast<int>(end_reason_);
  is_accepting_ = false;
  clients_.remove();
  metrics_.remove();
  clients_.close();
  metrics_.close();
  for (const pid_t pid : sessions_.processes())
    if (::sigqueue(pid, SIGTERM, reason) != 0)  // the queue of this user's signals may be full
      ::kill(pid, SIGTERM);
  for (const pid_t pid : spares_.processes())
    ::kill(pid, SIGKILL);
  for (const auto& [pid, peer] : refusing_)
    ::kill(pid, SIGKILL);
  spares_.forget();
  half_open_.clear();
  queue_.forget();
  wait_for_sessions(kTimeToEnd);
  for (const pid_t pid : sessions_.processes())
    ::kill(pid, SIGKILL);
  wait_for_sessions(kTimeToEnd);
  logs_.end_all();
}

void Listener::wait_for_sessions(std::chrono::milliseconds time) {
  const Clock::time_point end = Clock::now() + time;
  while (sessions_.size() > 0 && Clock::now() < end) {
    wait();
    logs_.read(polled_);
    sessions_.answer_requests(options_.token);  // else poll() returns at once for one that asks
    reap();
  }
}

}  // namespace torch_remote::server
