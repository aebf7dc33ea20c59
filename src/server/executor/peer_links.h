#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/fd.h"
#include "base/limited_log.h"
#include "base/mutex.h"
#include "server/executor/peer_link.h"
#include "transport/tls_context.h"
#include "wire/peers.h"

namespace torch_remote::server {

// How long a session listens for the link of a ticket.
constexpr std::chrono::seconds kTicketTime{15};
// How long a session tries to connect to another.
constexpr std::chrono::seconds kPeerDialTime{3};
// Limit for the links of a session, and for those that are being opened. Our client opens four for
// each other server.
constexpr size_t kMaxPeerLinks = 128;
constexpr size_t kMaxPeerOpenings = 8;

struct PeerOptions {
  // The address of this machine that the client's connection has; empty: it has none, and the
  // session can connect to others but not listen.
  std::string host;
  std::chrono::milliseconds silence = std::chrono::seconds(30);  // of PeerLink
};

// The links of a session to sessions of other servers, by the client's names. Thread-safe.
class PeerLinks {
 public:
  explicit PeerLinks(PeerOptions options) : options_(std::move(options)) {}

  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // Listens for the link on a port of its own, on another thread, until a peer has proven that it
  // knows the ticket or kTicketTime is over. Throws ConnectionError or std::invalid_argument.
  wire::PeerPlace listen(uint64_t link, const wire::PeerTicket& ticket);
  // Connects on another thread, which calls `on_done` with why it failed; empty: the link is open.
  // Throws ConnectionError.
  void connect(uint64_t link, const wire::PeerTicket& ticket, const wire::PeerPlace& place,
               std::function<void(const std::string&)> on_done);
  // Null: there is no such link.
  std::shared_ptr<PeerLink> find(uint64_t link);
  // Also one that is being opened.
  void close(uint64_t link);

 private:
  using Tls = std::shared_ptr<const transport::TlsContext>;

  // A thread that opens a link.
  struct Opening {
    uint64_t link = 0;
    std::thread thread;
    std::atomic<bool> is_closed{false};  // by the client, before it was open
    std::atomic<bool> is_done{false};
  };

  void open(uint64_t link, std::function<void(const Opening&)> work);
  void accept(const Fd& socket, const Tls& tls, const wire::PeerTicket& ticket,
              const Opening& opening);
  // False: the peer does not know the ticket.
  bool admit(Fd connection, const Tls& tls, const wire::PeerTicket& ticket, const Opening& opening);
  void add(const Opening& opening, std::shared_ptr<transport::Stream> stream);
  void remove(uint64_t link);
  Tls own_tls();

  const PeerOptions options_;
  Tls tls_;  // executor; made when it is first needed
  std::atomic<bool> is_over_{false};
  LimitedLog log_;

  Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<PeerLink>> links_ GUARDED_BY(mutex_);
  std::list<Opening> openings_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::server
