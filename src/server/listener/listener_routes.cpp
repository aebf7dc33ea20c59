// What the listener does with a connection whose first bytes it has seen.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/listener/half_open.h"
#include "server/listener/listener.h"
#include "server/session/handshake.h"
#include "server/session/sandbox.h"
#include "transport/fd_stream.h"
#include "wire/handshake.h"

namespace torch_remote::server {
namespace {

// Clients that are being refused inside TLS, each by a process of its own. More are closed.
constexpr size_t kMaxRefusing = 16;
// How long a new client waits while all sessions are taken: when a program stops a session and
// begins the next at once, the process of the first has not ended yet.
constexpr std::chrono::seconds kWaitForRoom{2};

std::string count_of(size_t sessions) {
  return std::to_string(sessions) + (sessions == 1 ? " session" : " sessions");
}

}  // namespace

void Listener::route(HalfOpen client) {
  const wire::Preamble preamble = *client.decoded;
  if (preamble.intent == 1)
    return pass_on(std::move(client), preamble.route);
  if (must_wait(client))
    return half_open_.push_back(std::move(client));
  try {
    wire::agree_as(wire::Side::kServer, preamble.min, preamble.max);
  } catch (const ProtocolError& error) {
    note_stranger(client.peer);
    return refuse(std::move(client), error.what());
  }
  reap();  // a session that has just ended leaves room
  const size_t most = most_sessions_of(client.peer);
  if (most < options_.max_sessions &&
      sessions_.size_of(client.peer) + queue_.size_of(client.peer) >= most)
    return wait_for_room(std::move(client),
                         "this server takes at most " + count_of(most) +
                             " from one address, which has them (--max-sessions-per-address)");
  // A client evicts at most once: a later eviction might hit another client that was just let in.
  const bool may_evict = !client.room_by;
  if (sessions_.size() + queue_.size() >= options_.max_sessions &&
      !(may_evict && evict_for(client.peer)))
    return wait_for_room(std::move(client), "this server has " + count_of(options_.max_sessions) +
                                                ", and takes no more (--max-sessions)");
  queue_.add(std::move(client), Clock::now());
}

// A peer that does not speak our protocol gets no answer.
void Listener::refuse_stranger(HalfOpen client, const std::string& reason) {
  note_stranger(client.peer);
  if (client.decoded)
    return refuse_in_the_clear(std::move(client), reason);
  note_refusal(client, reason);
}

size_t Listener::most_sessions_of(const std::string& peer) const {
  if (options_.max_sessions_per_address != 0)
    return options_.max_sessions_per_address;
  return is_local_peer(peer) ? options_.max_sessions : (3 * options_.max_sessions + 3) / 4;
}

bool Listener::evict_for(const std::string& newcomer) {
  if (!sessions_.evict_unproven_session())
    return queue_.evict(newcomer);
  log_.write(LogLevel::kWarning,
             "all sessions are taken; ending one whose client has not authenticated");
  return true;
}

bool Listener::must_wait(HalfOpen& client) const {
  if (!client.served_at)
    client.served_at = Clock::now() + delays_.delay_of(client.peer, Clock::now());
  return Clock::now() < *client.served_at;
}

void Listener::wait_for_room(HalfOpen client, const std::string& reason) {
  if (!client.room_by)
    client.room_by = Clock::now() + kWaitForRoom;
  if (Clock::now() < *client.room_by)
    return half_open_.push_back(std::move(client));
  refuse(std::move(client), reason);
}

void Listener::pass_on(HalfOpen client, uint64_t route) {
  const Fd* const control = sessions_.find(route);
  if (control == nullptr)
    return refuse_unknown(std::move(client), route);
  const Passed passed =
      pass_descriptors(*control, client.preamble, std::array{client.socket.get()});
  if (passed != Passed::kFull)
    return;  // a session that does not take it is ending; the client tries again
  if (!client.room_by)
    client.room_by = Clock::now() + kWaitForRoom;
  if (Clock::now() < *client.room_by)
    half_open_.push_back(std::move(client));
}

void Listener::refuse_unknown(HalfOpen client, uint64_t route) {
  const Clock::time_point now = Clock::now();
  if (!client.served_at) {
    guesses_.note_failure(client.peer, now);
    client.served_at = now + guesses_.delay_of(client.peer, now);
  }
  if (now < *client.served_at)
    return half_open_.push_back(std::move(client));
  // Inside TLS the answer costs a process, as a new session does.
  if (client.has_tls && !client.must_speak) {
    client.must_speak = true;
    client.is_whole = false;
    return half_open_.push_back(std::move(client));
  }
  refuse(std::move(client), sessions_.describe_missing(route));
}

void Listener::note_refusal(const HalfOpen& client, const std::string& reason) {
  sessions_.note_refusal();
  log_.write(LogLevel::kWarning, "a connection was refused",
             {{"peer", describe_peer(client.socket)}, {"reason", reason}});
}

void Listener::refuse(HalfOpen client, const std::string& reason) {
  if (options_.tls == nullptr)
    return refuse_in_the_clear(std::move(client), reason);
  note_refusal(client, reason);
  refuse_in_process(std::move(client), reason);
}

void Listener::refuse_in_the_clear(HalfOpen client, const std::string& reason) {
  note_refusal(client, reason);
  const std::vector<std::byte> block = refusal_block(reason);
  ::send(client.socket.get(), block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(client.socket.get(), SHUT_WR);
  client.is_refused = true;
  client.room_by.reset();
  client.served_at.reset();
  half_open_.push_back(std::move(client));
}

void Listener::refuse_in_process(HalfOpen client, const std::string& reason) {
  const auto of_peer =
      std::ranges::count(refusing_, client.peer, [](const auto& one) { return one.second; });
  if (refusing_.size() >= kMaxRefusing || of_peer >= static_cast<ptrdiff_t>(kMostUnproven))
    return;
  std::fflush(nullptr);
  SessionLogs::Pipe pipe;
  try {
    pipe = SessionLogs::make_pipe();
  } catch (const std::system_error&) {
    return;  // too few descriptors are free
  }
  const pid_t pid = ::fork();
  if (pid > 0) {
    refusing_.emplace(pid, client.peer);
    logs_.add(pid, std::move(pipe.reader), "refusing " + std::to_string(pid));
  }
  if (pid != 0)
    return;
  ::dup2(pipe.writer.get(), STDOUT_FILENO);
  ::dup2(pipe.writer.get(), STDERR_FILENO);
  pipe = {};
  name_this_thread("refusing");  // for ps
  const wire::Preamble preamble = *client.decoded;
  const auto stream = leave_listener(std::move(client.socket));
  confine_to_descriptors(options_.sandbox);  // before the first byte that the client has sent
  try {
    refuse_in_tls(*stream, preamble, reason);
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, "refusing a client failed", {{"reason", error.what()}});
  }
  ::_exit(0);
}

std::unique_ptr<transport::Stream> Listener::leave_listener(Fd socket) {
  signals_.restore_in_child();
  clients_.close();
  metrics_.close();
  half_open_.clear();
  queue_.forget();
  sessions_.forget();
  spares_.forget();
  logs_.forget();
  ::explicit_bzero(options_.token.data(), options_.token.size());
  const std::string peer = describe_peer(socket);
  return encrypted(transport::socket_stream(std::move(socket), peer), options_.tls);
}

}  // namespace torch_remote::server
