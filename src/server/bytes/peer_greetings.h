#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "transport/stream.h"

namespace torch_remote::server {

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
