#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/networks.h"
#include "server/bytes/peer_link.h"
#include "transport/stream.h"
#include "transport/tls_context.h"
#include "wire/peers.h"

namespace torch_remote::server {

// How long a session listens for the link of a ticket.
constexpr std::chrono::seconds kTicketTime{15};
// How long a session tries to connect to another and to prove that it knows the ticket. A failure
// is answered then and not before, in the same words whatever it was: else a client could find out
// by the answers which addresses and ports the server reaches.
constexpr std::chrono::seconds kPeerOpenTime{5};
inline constexpr const char* kNoLink =
    "the other server was not reached at its address, or did not prove that it knows the ticket, "
    "or its address is not in a network of --peers; the log of this server has the reason";
// Limit for the links of a session, and for those that are being opened. Our client opens four for
// each other server.
constexpr size_t kMaxPeerLinks = 128;
constexpr size_t kMaxPeerOpenings = 8;

struct PeerOptions {
  // The address of this machine that the client's connection has; empty: it has none, and the
  // session can connect to others but not listen.
  std::string host;
  std::chrono::milliseconds silence = std::chrono::seconds(30);  // of PeerLink
  Networks networks = {};                                        // it connects to no others
  std::chrono::milliseconds open_time = kPeerOpenTime;
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
  wire::PeerAddress listen(uint64_t link, const wire::PeerTicket& ticket);
  // Connects on another thread, which calls `on_done` with kNoLink if it failed; empty: the link is
  // open. Throws ConnectionError for an address that it does not take.
  void connect(uint64_t link, const wire::PeerTicket& ticket, const wire::PeerAddress& peer,
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
  // PeerGreetings::Greet: adds the link if the peer knows the ticket.
  void admit(const std::shared_ptr<transport::Stream>& stream, const wire::PeerTicket& ticket,
             const Opening& opening, std::atomic<bool>& is_link);
  void wait_until(std::chrono::steady_clock::time_point end) const;
  void note_no_link(const wire::PeerAddress& peer, const std::string& reason);
  void add(const Opening& opening, std::shared_ptr<transport::Stream> stream);
  void remove(uint64_t link);
  Tls own_tls();

  const PeerOptions options_;
  Tls tls_;  // executor; made when it is first needed
  std::atomic<bool> is_over_{false};
  std::atomic<uint64_t> refused_{0};  // connections for links, of anybody

  Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<PeerLink>> links_ GUARDED_BY(mutex_);
  std::list<Opening> openings_ GUARDED_BY(mutex_);
};

// The connections that come for one link, until one of them has proven that it knows the ticket.
// Each has a thread for its handshake, so that a silent one keeps no other out. Confined to the
// thread that accepts them.
class PeerGreetings {
 public:
  // One more ends the oldest of the peer that has most: Note [Limits for each peer] in
  // base/peer_limits.h.
  static constexpr size_t kMost = 8;

  // Does the handshake. Sets `is_link` before the stream is a link, and takes it back if it becomes
  // none: the stream of a link is not shut down here. Does not throw.
  using Greet = std::function<void(const std::shared_ptr<transport::Stream>& stream,
                                   std::atomic<bool>& is_link)>;

  explicit PeerGreetings(Greet greet) : greet_(std::move(greet)) {}

  // Ends the handshakes that are under way.
  ~PeerGreetings();
  PeerGreetings(const PeerGreetings&) = delete;
  PeerGreetings& operator=(const PeerGreetings&) = delete;

  // `peer` is of identify_peer(). Throws std::system_error when no thread can be started.
  void begin(std::shared_ptr<transport::Stream> stream, std::string peer);

  // Whether a peer has proven that it knows the ticket.
  bool has_link() const { return has_link_; }

 private:
  struct Greeting {
    std::shared_ptr<transport::Stream> stream;
    std::string peer;
    std::thread thread;
    std::atomic<bool> is_link{false};
    std::atomic<bool> is_done{false};
  };

  void end(std::list<Greeting>::iterator greeting);
  void make_room();

  const Greet greet_;
  std::atomic<bool> has_link_{false};
  std::list<Greeting> greetings_;  // the oldest first
};

}  // namespace torch_remote::server
