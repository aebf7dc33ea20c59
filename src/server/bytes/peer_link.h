#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "transport/stream.h"
#include "wire/peers.h"

namespace torch_remote::server {

// How long the ends of a link have to prove that they know its ticket.
constexpr std::chrono::seconds kPeerHandshakeTime{5};
// Limit for copies that wait on a link. Our client has one at a time on its way.
constexpr size_t kMaxQueuedCopies = 16;

// The two sides of a link's handshake: Note [Direct copies] in wire/peers.h. They begin with TLS
// where the stream has it. Throw ConnectionError if the peer does not know the ticket, says
// something else, or is not done in time.
void greet_listening_peer(transport::Stream& stream, const wire::PeerTicket& ticket,
                          std::chrono::milliseconds time = kPeerHandshakeTime);
// Calls `on_proven` before it tells the peer that the link is ready.
void greet_connecting_peer(transport::Stream& stream, const wire::PeerTicket& ticket,
                           const std::function<void()>& on_proven);

// A connection between two sessions, after its handshake. Bytes that it sends are written by a
// thread of its own; another watches the time limits of what it reads. Thread-safe; expect() and
// read() are for one thread.
class PeerLink {
 public:
  // The peer may be silent for so long in the middle of a copy.
  PeerLink(std::shared_ptr<transport::Stream> stream, std::chrono::milliseconds silence);
  // Ends what is on its way.
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  // Returns at once; `owner` keeps the bytes alive until they are sent. Throws ConnectionError if
  // the link is broken or has too many copies to send.
  void send(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

  // Waits for the peer's next copy. Throws ConnectionError, as read(), also if the copy has another
  // length.
  void expect(uint64_t length);
  // The next bytes of that copy. Throws ConnectionError if the peer is gone, or sends less than
  // 1 MiB, or what is left, in the time of silence.
  void read(std::span<std::byte> into);

 private:
  void end() noexcept;

  struct Copy {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };

  using Time = CondVar::Clock::time_point;

  void write_copies();
  void read_piece(std::span<std::byte> into);
  // Shuts the stream down at `read_until_`.
  void watch();
  void set_deadline(Time until);

  const std::shared_ptr<transport::Stream> stream_;
  const std::chrono::milliseconds silence_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Copy> copies_ GUARDED_BY(mutex_);
  std::string broken_ GUARDED_BY(mutex_);  // why nothing more is sent
  bool is_over_ GUARDED_BY(mutex_) = false;
  Time read_until_ GUARDED_BY(mutex_) = Time::max();  // max(): nobody reads
  bool is_late_ GUARDED_BY(mutex_) = false;

  // Last: they use the members above.
  std::thread writer_;
  std::thread watcher_;
};

}  // namespace torch_remote::server
