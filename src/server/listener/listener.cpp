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
#include "server/session/handover.h"
#include "server/session/sandbox.h"

namespace torch_remote::server {

Listener::Listener(ListeningSocket clients, ListeningSocket metrics, ServeOptions options,
                   SessionProgram program)
    : clients_(std::move(clients)),
      metrics_(std::move(metrics)),
      options_(std::move(options)),
      spares_(std::move(program)),
      sessions_(expected_sandbox(options_.sandbox, needs_of(options_)).describe()) {}

void Listener::prepare() {
  spares_.start_missing(0);
  while (!EndSignals::asked_to_end() && !spares_.has_ready()) {
    if (const auto failure = spares_.take_failure())
      throw std::invalid_argument(*failure);
    wait();
    reap();
    spares_.read_reports();
  }
}

void Listener::run() {
  is_accepting_ = true;
  while (!EndSignals::asked_to_end() && !is_due()) {
    spares_.start_missing(queue_.wanted_processes(delays_, Clock::now()));
    wait();
    reap();
    spares_.read_reports();
    sessions_.answer_requests(options_.token);
    accept_new();
    advance();
    serve_queue();
    tell_metrics();
    strangers_.tell_left_out();
  }
  strangers_.tell_left_out(true);
  end_sessions();
}

bool Listener::is_due() {
  activity_.note(sessions_.last_use());
  const auto reason = activity_.reason_to_end(options_.limits);
  if (reason)
    log(LogLevel::kWarning, "the server ends", {{"reason", *reason}});
  return reason.has_value();
}

void Listener::wait() {
  const Clock::time_point now = Clock::now();
  polled_.clear();
  polled_.push_back({is_accepting_ ? clients_.polled(now) : -1, POLLIN, 0});
  polled_.push_back({metrics_.polled(now), POLLIN, 0});
  for (const HalfOpen& client : half_open_)
    polled_.push_back({client.is_waiting() ? -1 : client.socket.get(), POLLIN, 0});
  spares_.add_polled(polled_);
  sessions_.add_polled(polled_);
  const timespec interval{0, std::chrono::nanoseconds(Activity::kInterval).count()};
  if (::ppoll(polled_.data(), polled_.size(), &interval, &signals_.during_wait()) < 0 &&
      errno != EINTR)
    throw_system_errno("ppoll", errno);
}

void Listener::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (refusing_.erase(pid) == 0 && !spares_.remove(pid, status))
      note_exit(sessions_.remove(pid, status), status);
}

void Listener::note_exit(const std::string& peer, int status) {
  if (!WIFEXITED(status))
    return;
  if (WEXITSTATUS(status) == static_cast<int>(SessionExit::kClosed))
    delays_.note_success(peer);
  if (WEXITSTATUS(status) != static_cast<int>(SessionExit::kNotAuthenticated))
    return;
  sessions_.note_refusal();
  delays_.note_failure(peer, Clock::now());
  if (delays_.delay_of(peer, Clock::now()).count() > 0)
    strangers_.write(LogLevel::kWarning, "too many failed authentications; this peer waits",
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
  if (!add(half_open_, HalfOpen(std::move(client), Clock::now() + kHandshakeTime), kMaxHalfOpen))
    strangers_.write(LogLevel::kWarning,
                     "too many connections without a preamble; dropping the oldest");
}

void Listener::shed() {
  const bool has_dropped = drop_one(half_open_);
  if (has_dropped)
    clients_.end_rest();
  strangers_.write(LogLevel::kError,
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
    const HalfOpen::Progress progress = client.read();
    if (progress == HalfOpen::Progress::kComplete)
      route(std::move(client));
    else if (progress == HalfOpen::Progress::kWaiting && Clock::now() < client.deadline)
      half_open_.push_back(std::move(client));
    else if (!client.is_refused)
      strangers_.write(LogLevel::kInfo, "a connection ended before its preamble");
  }
}

void Listener::serve_queue() {
  queue_.drop_departed();
  for (std::optional<std::string> failure; (failure = spares_.take_failure());)
    if (!queue_.empty())
      refuse(queue_.take_next(sessions_), "cannot start a session: " + *failure);
  for (const std::string& peer : queue_.drop_late(Clock::now()))
    strangers_.write(LogLevel::kWarning,
                     "no process was ready in time for a client, which tries again",
                     {{"peer", peer}});
  while (!queue_.empty() && spares_.has_ready())
    begin_session(queue_.take_next(sessions_), *spares_.take());
}

void Listener::begin_session(HalfOpen client, SessionProcess process) {
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
  const bool is_taken = hand_over(process.control, told, client.socket);
  if (!is_taken)
    ::kill(process.pid, SIGKILL);  // it is ending, or it is stopped
  strangers_.write(
      LogLevel::kInfo, "a client gets a process",
      {{"session", wire::session_id(told.route)}, {"pid", process.pid}, {"peer", client.peer}});
  sessions_.add(std::move(process), told.route, client.peer, is_taken && told.has_token != 0);
  if (!is_taken)
    queue_.add_first(std::move(client));  // it gets the next one
}

void Listener::end_sessions() {
  for (const pid_t pid : sessions_.processes())
    ::kill(pid, SIGTERM);
  for (const pid_t pid : spares_.processes())
    ::kill(pid, SIGKILL);
  clients_.remove();
  metrics_.remove();
}

}  // namespace torch_remote::server
