#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/session/session.h"
#include "wire/peers.h"

namespace torch_remote::client {

// The links between sessions of this process: Note [Direct copies] in wire/peers.h. A link is used
// for one copy at a time. Thread-safe.
class PeerLinks {
 public:
  static PeerLinks& instance();

  // Both servers can have links, and opening one has not failed. May wait for the handshakes.
  bool may_connect(Session& one, Session& other);
  // A free link between the two, which is opened if there is none: then it waits for both. Empty:
  // the servers cannot reach each other, or there are as many links as allowed and all are used.
  std::optional<uint64_t> take(Session& one, Session& other);
  void give_back(Session& one, Session& other, uint64_t link);
  // For a link that may have bytes on their way, or that failed for this reason: it is closed.
  void drop(Session& one, Session& other, uint64_t link, const std::string& failure = "");

  // Tells both sessions to close a link, and waits for neither.
  static void close(Session& one, Session& other, uint64_t link);
  // Sends a query about a link and waits for the answer.
  static wire::PeerAnswer ask(Session& session, const wire::PeerQuery& query);

 private:
  struct Pair {
    std::vector<uint64_t> free;
    unsigned links = 0;     // with those that are used or being opened
    unsigned failures = 0;  // attempts to open a link, and links, that failed
  };

  using Key = std::pair<Session*, Session*>;
  static Key key_of(Session& one, Session& other);
  // Why there is no link; empty: it is open.
  static std::string open(Session& listening, Session& connecting, uint64_t link);

  Mutex mutex_;
  std::map<Key, Pair> pairs_ GUARDED_BY(mutex_);  // sessions are never destroyed
  uint64_t next_ GUARDED_BY(mutex_) = 1;
};

}  // namespace torch_remote::client
