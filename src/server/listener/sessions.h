#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "base/fd.h"
#include "base/session_page.h"
#include "server/listener/metrics.h"
#include "server/session/serve.h"

namespace torch_remote::server {

// The sessions of a listener: their processes, control sockets and pages. Confined to one thread.
class Sessions {
 public:
  // A session without a process: its process gets `place`, the listener keeps `control`.
  struct New {
    SessionPlace place;
    Fd control;
    std::string peer;  // of identify_peer()
  };

  // Throws std::system_error.
  New prepare(std::string peer);
  void add(pid_t pid, New session);
  // For a session whose process could not be started.
  void discard(New session);
  // Process `pid` ended with waitpid()'s `status`. If it was killed, its last calls are logged.
  // Returns its first peer.
  std::string remove(pid_t pid, int status);
  // Kills a process whose client has not proven who it is, the oldest one of the peer that has most
  // of them. False: there is none.
  bool evict_unproven_session();
  // For the process of a new session: closes its copies of the other sessions' sockets.
  void forget();

  size_t size() const { return sessions_.size(); }

  // The socket by which a session takes connections; null when there is no such session.
  const Fd* find(uint64_t route) const;
  // Why there is no such session, for its client: how it ended and, if killed, its last calls.
  std::string describe_missing(uint64_t route) const;

  std::vector<pid_t> processes() const;

  void note_refusal() { ++figures_.clients_refused; }

  std::string metrics() const;

 private:
  struct Entry {
    uint64_t route;
    Fd control;
    SessionPage* page;
    std::string peer;
    uint64_t number;  // in the order in which they began
    bool is_dropped = false;
  };

  uint64_t new_route() const;
  void remember(uint64_t route, std::string end);

  std::unordered_map<pid_t, Entry> sessions_;
  std::vector<SessionPage*> free_pages_;
  std::deque<std::pair<uint64_t, std::string>> ended_;  // route and how it ended; newest last
  ListenerFigures figures_;
};

}  // namespace torch_remote::server
