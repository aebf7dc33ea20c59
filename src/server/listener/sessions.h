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

// A listener's sessions: their processes, how to reach them, and what they left behind. Confined to its thread.
class Sessions {
 public:
  // What a session needs before it has a process: `place` is for that, `control` stays here.
  struct New {
    SessionPlace place;
    Fd control;
  };

  // Throws std::system_error.
  New prepare();
  void add(pid_t pid, New session);
  // A process that did not become one.
  void discard(New session);
  // That process has ended; `status` is waitpid()'s. One that was killed leaves a note with its last calls in the log.
  void remove(pid_t pid, int status);
  // Ends the oldest process whose client has not proven itself. False: all have.
  bool drop_a_stranger();
  // In a session's own process: the others are none of its business.
  void forget();

  size_t size() const { return sessions_.size(); }

  // Where a session takes connections; null when there is none of that number.
  const Fd* find(uint64_t route) const;
  // Why there is none, for its client: how it ended, and the last calls of one that was killed, where that is known.
  std::string describe_missing(uint64_t route) const;

  std::vector<pid_t> processes() const;

  void note_refusal() { ++figures_.clients_refused; }

  std::string metrics() const;

 private:
  struct Entry {
    uint64_t route;
    Fd control;
    SessionPage* page;
    uint64_t number;  // in the order in which they began
    bool is_dropped = false;
  };

  uint64_t new_route() const;
  void remember(uint64_t route, std::string end);

  std::unordered_map<pid_t, Entry> sessions_;
  std::vector<SessionPage*> free_pages_;
  std::deque<std::pair<uint64_t, std::string>> ended_;  // and how; newest last
  ListenerFigures figures_;
};

}  // namespace torch_remote::server
