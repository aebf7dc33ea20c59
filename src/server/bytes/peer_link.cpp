#include "server/bytes/peer_link.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "base/error.h"
#include "base/platform.h"
#include "transport/deadline.h"
#include "wire/handshake.h"

namespace torch_remote::server {
namespace {

// The unit of the time limit: a peer that sends less than this in the time of silence is left.
constexpr size_t kPiece = size_t{1} << 20;

using Parts = std::array<std::span<const std::byte>, 2>;

void read_all(transport::Stream& stream, std::span<std::byte> into) {
  while (!into.empty()) {
    const size_t got = stream.read_some(into);
    if (got == 0)
      throw ConnectionError("the other server closed the link");
    into = into.subspan(got);
  }
}

wire::Proof proof_of(const transport::Stream& stream, const wire::PeerTicket& ticket,
                     wire::Side side, const wire::PeerNonce& connecting,
                     const wire::PeerNonce& listening) {
  const std::string_view key(reinterpret_cast<const char*>(ticket.data()), ticket.size());
  return wire::make_proof(key, side, connecting, listening, stream.channel_binding());
}

wire::PeerNonce new_nonce() {
  wire::PeerNonce nonce;
  random_bytes(nonce);
  return nonce;
}

void check_proof(transport::Stream& stream, const wire::Proof& wanted) {
  wire::Proof proof{};
  read_all(stream, proof);
  if (!wire::equal_proofs(proof, wanted))
    throw ConnectionError("the other end of the link does not know the ticket");
}

}  // namespace

void greet_listening_peer(transport::Stream& stream, const wire::PeerTicket& ticket,
                          std::chrono::milliseconds time) {
  const transport::Deadline deadline(stream, time);
  stream.secure({});
  const wire::PeerNonce own = new_nonce();
  stream.write(Parts{wire::kPeerMagic, own});
  wire::PeerNonce other{};
  read_all(stream, other);
  check_proof(stream, proof_of(stream, ticket, wire::Side::kServer, own, other));
  const wire::Proof proof = proof_of(stream, ticket, wire::Side::kClient, own, other);
  stream.write(Parts{proof});
  std::array<std::byte, 1> ready{};
  read_all(stream, ready);
  if (ready[0] != std::byte{1})
    throw ConnectionError("the other end of the link is not ready");
}

void greet_connecting_peer(transport::Stream& stream, const wire::PeerTicket& ticket,
                           const std::function<void()>& on_proven) {
  const transport::Deadline deadline(stream, kPeerHandshakeTime);
  stream.secure({});
  std::array<std::byte, wire::kPeerMagic.size()> magic{};
  read_all(stream, magic);
  if (magic != wire::kPeerMagic)
    throw ConnectionError("the other end of the link does not speak its protocol");
  wire::PeerNonce other{};
  read_all(stream, other);
  const wire::PeerNonce own = new_nonce();
  const wire::Proof proof = proof_of(stream, ticket, wire::Side::kServer, other, own);
  stream.write(Parts{own, proof});
  check_proof(stream, proof_of(stream, ticket, wire::Side::kClient, other, own));
  on_proven();
  const std::array<std::byte, 1> ready{std::byte{1}};
  stream.write(Parts{ready});
}

PeerLink::PeerLink(std::shared_ptr<transport::Stream> stream, std::chrono::milliseconds silence)
    : stream_(std::move(stream)), silence_(silence) {
  try {
    writer_ = std::thread([this] { write_copies(); });
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::system_error& error) {  // there are too many threads
    end();
    throw ConnectionError(error.what());
  }
}

PeerLink::~PeerLink() {
  end();
}

void PeerLink::end() noexcept {
  {
    MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  stream_->shutdown();
  for (std::thread* const thread : {&writer_, &watcher_})
    if (thread->joinable())
      thread->join();
}

void PeerLink::send(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  {
    MutexLock lock(mutex_);
    if (!broken_.empty())
      throw ConnectionError(broken_);
    if (copies_.size() >= kMaxQueuedCopies)
      throw ConnectionError("too many copies wait on one link");
    copies_.push_back({bytes, std::move(owner)});
  }
  changed_.notify_all();
}

void PeerLink::write_copies() {
  name_this_thread("tr-peer");
  for (;;) {
    Copy copy;
    {
      MutexLock lock(mutex_);
      while (!is_over_ && copies_.empty())
        changed_.wait(mutex_);
      if (is_over_)
        return;
      copy = std::move(copies_.front());
      copies_.pop_front();
    }
    try {
      const uint64_t length = copy.bytes.size();
      stream_->write(Parts{std::as_bytes(std::span(&length, 1)), copy.bytes});
    } catch (const ConnectionError& error) {
      MutexLock lock(mutex_);
      broken_ = error.what();
      copies_.clear();
      return;
    }
  }
}

// A later deadline wakes nobody: the watcher finds it when the one before has passed.
void PeerLink::set_deadline(Time until) {
  bool was_unwatched = false;
  {
    MutexLock lock(mutex_);
    was_unwatched = read_until_ == Time::max();
    read_until_ = until;
  }
  if (was_unwatched)
    changed_.notify_all();
}

void PeerLink::watch() {
  name_this_thread("tr-peer-watch");
  {
    MutexLock lock(mutex_);
    while (!is_over_ && CondVar::Clock::now() < read_until_) {
      if (read_until_ == Time::max())
        changed_.wait(mutex_);
      else
        changed_.wait_until(mutex_, read_until_);
    }
    if (is_over_)
      return;
    is_late_ = true;
  }
  stream_->shutdown();
}

void PeerLink::read_piece(std::span<std::byte> into) {
  set_deadline(CondVar::Clock::now() + silence_);
  try {
    read_all(*stream_, into);
  } catch (const ConnectionError&) {
    MutexLock lock(mutex_);
    if (!is_late_)
      throw;
    throw ConnectionError("the other server sent less than " + std::to_string(into.size()) +
                          " bytes in " + std::to_string(silence_.count()) + " ms");
  }
}

void PeerLink::expect(uint64_t length) {
  uint64_t announced = 0;
  read_piece(std::as_writable_bytes(std::span(&announced, 1)));
  if (announced != length)
    throw ConnectionError("the other server sends " + std::to_string(announced) + " bytes, and " +
                          std::to_string(length) + " were expected");
  set_deadline(Time::max());
}

void PeerLink::read(std::span<std::byte> into) {
  while (!into.empty()) {
    const size_t count = std::min<size_t>(into.size(), kPiece);
    read_piece(into.first(count));
    into = into.subspan(count);
  }
  set_deadline(Time::max());
}

}  // namespace torch_remote::server
