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
#include "server/listener/spares.h"

namespace torch_remote::server {

// The sessions of a listener: their processes, control sockets and pages. Confined to one thread.
class Sessions {
 public:
  // `sandbox`: for the figures.
  explicit Sessions(std::string sandbox) { figures_.sandbox = std::move(sandbox); }

  // A number that no session has.
  uint64_t new_route() const;
  // `peer` is of identify_peer(). `needs_proofs`: it will ask for them, see answer_requests().
  void add(SessionProcess process, uint64_t route, std::string peer, bool needs_proofs);
  // Process `pid` ended with waitpid()'s `status`. If it was killed, its last calls are logged.
  // Returns its first peer.
  std::string remove(pid_t pid, int status);
  // Kills a process whose client has not proven who it is, the oldest one of the peer that has most
  // of them. False: there is none.
  bool evict_unproven_session();
  // For a child of fork(): closes the sessions' sockets and pages.
  void forget();

  // For poll(): the sockets of those that have not asked for proofs yet.
  void add_polled(std::vector<pollfd>& polled) const;
  // Makes the handshake's proofs for sessions that ask for them; a session gets them once.
  void answer_requests(const std::string& token);
  // When any of them was used last, as they tell: of Activity, or anything at all.
  int64_t last_use() const;
  // How many of this peer's have not begun.
  size_t unproven_of(const std::string& peer) const;

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
    SessionPage::View page;
    std::string peer;
    uint64_t number;  // in the order in which they began
    bool needs_proofs;
    bool is_dropped = false;
  };

  void remember(uint64_t route, std::string end);

  std::unordered_map<pid_t, Entry> sessions_;
  int64_t last_use_of_ended_ = 0;
  std::deque<std::pair<uint64_t, std::string>> ended_;  // route and how it ended; newest last
  ListenerFigures figures_;
};

}  // namespace torch_remote::server
