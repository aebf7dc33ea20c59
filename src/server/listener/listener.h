#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "base/peer_limits.h"
#include "server/listener/call_logs.h"
#include "server/listener/client_queue.h"
#include "server/listener/end_signals.h"
#include "server/listener/half_open.h"
#include "server/listener/limited_log.h"
#include "server/listener/listening_socket.h"
#include "server/listener/session_logs.h"
#include "server/listener/sessions.h"
#include "server/listener/spares.h"
#include "server/session/lifetime.h"
#include "server/session/serve.h"
#include "transport/stream.h"

namespace torch_remote::server {

// The listener of Note [The listener is small] in server/listener/listen.h. Confined to one thread.
class Listener {
 public:
  Listener(ListeningSocket clients, ListeningSocket metrics, ServeOptions options,
           SessionProgram program);

  // Waits until a session could begin. Throws std::invalid_argument with the reason why none can.
  void prepare();
  // Until a signal or a limit ends the server.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  // --- server/listener/listener.cpp: the loop, and processes

  bool is_due();
  void wait();
  void reap();
  void note_exit(const Sessions::Ended& ended);
  // A connection of this peer has ended before it proved who it is.
  void note_stranger(const std::string& peer);
  void accept_new();
  // A connection was ended that had not sent its first message, or that waited. False: there was
  // none.
  bool note_dropped(const std::optional<HalfOpen>& dropped);
  // Too few descriptors are free: ends such a connection.
  void shed();
  void tell_metrics();
  void advance();
  void advance(HalfOpen client);
  // Gives processes that are ready to clients; refuses a client for each process that failed.
  void serve_queue();
  // False: the process cannot get it now; both wait.
  bool begin_session(HalfOpen client, SessionProcess process);
  // Tells all sessions to end, and kills those that have not after a second.
  void end_sessions();
  // Until all sessions have ended, at most so long.
  void wait_for_sessions(std::chrono::milliseconds time);

  // --- server/listener/listener_routes.cpp: what becomes of a connection

  // Its preamble is read, and a new client's first message is there.
  void route(HalfOpen client);
  // Its bytes were wrong.
  void refuse_stranger(HalfOpen client, const std::string& reason);
  // A peer that has failed too often waits before each new session, and no other peer does.
  bool must_wait(HalfOpen& client) const;
  // How many sessions the peer may have.
  size_t most_sessions_of(const std::string& peer) const;
  // Makes room for a new client, among those that have not authenticated. False: it cannot.
  bool evict_for(const std::string& newcomer);
  // Refuses the client for this reason, unless there is room soon.
  void wait_for_room(HalfOpen client, const std::string& reason);
  // The session's process finds out whether this is its client.
  void pass_on(HalfOpen client, uint64_t route);
  // A peer that names sessions that do not exist waits for each further such answer.
  void refuse_unknown(HalfOpen client, uint64_t route);
  void note_refusal(const HalfOpen& client, const std::string& reason);
  void refuse(HalfOpen client, const std::string& reason);
  void refuse_in_the_clear(HalfOpen client, const std::string& reason);
  // The listener does not speak TLS, which takes time and looks at bytes of the peer.
  void refuse_in_process(HalfOpen client, const std::string& reason);
  // In a child: gives back everything of the listener but this connection.
  std::unique_ptr<transport::Stream> leave_listener(Fd socket);

  ListeningSocket clients_;
  ListeningSocket metrics_;  // closed without --metrics
  ServeOptions options_;
  Activity activity_;
  EndSignals signals_;
  bool is_accepting_ = false;
  EndReason end_reason_ = EndReason::kStopped;
  std::vector<pollfd> polled_;  // both listening sockets, then half_open_, then sessions' processes
  std::deque<HalfOpen> half_open_;
  ClientQueue queue_;
  LimitedLog log_;  // lines that clients and strangers cause
  SessionLogs logs_;
  CallLogs call_logs_;
  Spares spares_;
  Sessions sessions_;
  PeerDelays delays_;                      // of peers that end before they have proven who they are
  PeerDelays guesses_;                     // of peers that name sessions that do not exist
  std::map<pid_t, std::string> refusing_;  // processes of refuse_in_process(), and their peers
};

}  // namespace torch_remote::server
