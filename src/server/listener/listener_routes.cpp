// What the listener does with a connection whose preamble it has read.
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/listener/listener.h"
#include "server/session/handshake.h"
#include "transport/fd_stream.h"

namespace torch_remote::server {
namespace {

// Clients that are being refused inside TLS, each by a process of its own. More are closed.
constexpr size_t kMaxRefusing = 16;
// How long a new client waits while all sessions are taken: when a program stops a session and
// begins the next at once, the process of the first has not ended yet.
constexpr std::chrono::seconds kWaitForRoom{2};

}  // namespace

void Listener::route(HalfOpen client) {
  wire::Preamble preamble;
  try {
    preamble = wire::decode_preamble(client.preamble);
  } catch (const ProtocolError& error) {
    strangers_.write(LogLevel::kWarning, "a connection was refused",
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
      !(may_evict && evict_for(client.peer)))
    return wait_for_room(std::move(client));
  queue_.add(std::move(client));
}

bool Listener::evict_for(const std::string& newcomer) {
  if (!sessions_.evict_unproven_session())
    return queue_.evict(newcomer);
  strangers_.write(LogLevel::kWarning,
                   "all sessions are taken; ending one whose client has not authenticated");
  return true;
}

bool Listener::must_wait(HalfOpen& client) const {
  if (!client.served_at)
    client.served_at = Clock::now() + delays_.delay_of(client.peer, Clock::now());
  return Clock::now() < *client.served_at;
}

void Listener::wait_for_room(HalfOpen client) {
  if (!client.room_by)
    client.room_by = Clock::now() + kWaitForRoom;
  if (Clock::now() < *client.room_by)
    return half_open_.push_back(std::move(client));
  const size_t most = options_.max_sessions;
  refuse(std::move(client), "this server has " + std::to_string(most) +
                                (most == 1 ? " session" : " sessions") +
                                ", and takes no more (--max-sessions)");
}

void Listener::pass_on(HalfOpen client, uint64_t route) {
  const Fd* const control = sessions_.find(route);
  if (control == nullptr)
    return refuse_unknown(std::move(client), route);
  // A session that does not take it is ending or stopped; the client tries again.
  pass_descriptors(*control, client.preamble, std::array{client.socket.get()});
}

void Listener::refuse_unknown(HalfOpen client, uint64_t route) {
  const Clock::time_point now = Clock::now();
  if (!client.served_at) {
    guesses_.note_failure(client.peer, now);
    client.served_at = now + guesses_.delay_of(client.peer, now);
  }
  if (now < *client.served_at)
    return half_open_.push_back(std::move(client));
  refuse(std::move(client), sessions_.describe_missing(route));
}

void Listener::refuse(HalfOpen client, const std::string& reason) {
  sessions_.note_refusal();
  strangers_.write(LogLevel::kWarning, "a connection was refused",
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

void Listener::refuse_in_process(HalfOpen client, const std::string& reason) {
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
  ::explicit_bzero(options_.token.data(), options_.token.size());
  const std::string peer = describe_peer(socket);
  return encrypted(transport::socket_stream(std::move(socket), peer), options_.tls);
}

}  // namespace torch_remote::server
