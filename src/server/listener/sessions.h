#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "base/fd.h"
#include "base/session_page.h"
#include "server/listener/limited_log.h"
#include "server/listener/metrics.h"
#include "server/listener/spares.h"

namespace torch_remote::server {

// The sessions of a listener: their processes, control sockets and pages. Confined to one thread.
class Sessions {
 public:
  // `sandbox`: for the figures. `log` outlives this.
  Sessions(std::string sandbox, LimitedLog& log) : log_(log) {
    figures_.sandbox = std::move(sandbox);
  }

  // A number that no session has.
  uint64_t new_route() const;
  // `peer` is of identify_peer(). `needs_proofs`: it will ask for them, see answer_requests().
  void add(SessionProcess process, uint64_t route, std::string peer, bool needs_proofs);

  struct Ended {
    std::string peer;    // its first; empty: it was no session
    bool is_stranger;    // its client has not proven who it is
    std::string reason;  // a stranger's: why it ended, if the session has said so
  };

  // Process `pid` ended with waitpid()'s `status`. If it was killed, its last calls are logged.
  Ended remove(pid_t pid, int status);
  // Notes which sessions have begun, and returns the peers of those that have since the last call.
  // A session cannot take this back: how its process ends says nothing about its peer any more.
  std::vector<std::string> note_begun();
  // Kills the sessions whose process has taken more than the kernel's limits let it: see
  // Note [Limits that a session evades]. Looks once in kExcessInterval.
  void end_excessive();
  // Kills a process whose client has not proven who it is, the oldest one of the peer that has most
  // of them. False: there is none.
  bool evict_unproven_session();
  // For a child of fork(): closes the sessions' sockets and pages.
  void forget();

  // For poll(): the sockets of those that have not asked for proofs yet.
  void add_polled(std::vector<pollfd>& polled) const;
  // Makes the handshake's proofs for sessions that ask for them; a session gets them once. Nothing
  // more is received from it: what it sends, with descriptors, would stay on its way.
  void answer_requests(const std::string& token);
  // When any of them was used last, as they tell: of Activity, or anything at all.
  int64_t last_use() const;
  // How many of this peer's have not begun.
  size_t unproven_of(const std::string& peer) const;

  size_t size() const { return sessions_.size(); }

  // Of this peer.
  size_t size_of(const std::string& peer) const;

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
    bool has_begun = false;  // its client has proven who it is
    bool is_dropped = false;
    std::string excess{};  // why the listener has killed it
  };

  void remember(uint64_t route, std::string end);

  LimitedLog& log_;
  std::unordered_map<pid_t, Entry> sessions_;
  std::chrono::steady_clock::time_point next_look_{};  // of end_excessive()
  int64_t last_use_of_ended_ = 0;
  std::deque<std::pair<uint64_t, std::string>> ended_;  // route and how it ended; newest last
  ListenerFigures figures_;
};

}  // namespace torch_remote::server
