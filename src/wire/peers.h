#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "wire/codec.h"
#include "wire/spec.h"

namespace torch_remote::wire {

// Note [Direct copies]
//
// Two sessions of one client, of servers that were started with --peers, move the bytes of a copy
// over a link, a connection between them. The client opens a link: it makes a ticket of 32 random
// bytes, has one session listen and the other connect, and gives both the ticket over their own
// authenticated connections. They prove to each other that they know it:
//
//   link := magic:8 nonce:32                 from the one that connects
//           nonce:32 proof:32                from the one that listens
//           proof:32                         from the one that connects
//           1:u8                             from the one that listens: the link is ready
//           then copies in both directions:  length:u64 raw
//
//   proof := HMAC-SHA256(ticket, side:u8 ∥ both nonces [∥ channel binding]), as in handshake.h
//
// The listening session accepts one link for a ticket, for at most kTicketTime; then it closes its
// port. Beyond loopback the link is inside TLS, and the listening session's certificate, which it
// made itself, is recognised by the pin that the client hands on.
//
// The client uses a link for one copy at a time: `send`, and when that is answered, `receive`. The
// sending session writes on a thread of the link, so its later calls go on; the receiving session's
// executor reads. The bytes that come over a link are a stranger's: they fill the storage that the
// client has named, as many as the client has said, and mean nothing else.
using PeerTicket = std::array<std::byte, 32>;
using PeerNonce = std::array<std::byte, 32>;

constexpr std::array<std::byte, 8> kPeerMagic{std::byte{'T'}, std::byte{'R'}, std::byte{'P'},
                                              std::byte{'E'}, std::byte{'E'}, std::byte{'R'},
                                              std::byte{'1'}, std::byte{0}};

// QUERY kPeer:
//
//   query  := action:u8 link:varint …
//   answer := 0:u8 reason:text | 1:u8 [host:text port:varint pin:text]     the address: to kListen
//
// The answer with a reason tells of the link, which is then closed: the client copies in another
// way. A value that is missing, no memory and the like are answered with an ERROR.
enum class PeerAction : uint8_t {
  kListen = 0,   // ticket:32
  kConnect = 1,  // ticket:32 host:text port:varint pin:text
  kSend = 2,     // storage:varint offset:varint spec           a view, as of READ
  kReceive = 3,  // storage:varint offset:varint length:varint  bytes, as of BEGIN
  kClose = 4,
};

// Where a session listens. Without a pin the link is not encrypted, and the host must be loopback.
struct PeerAddress {
  std::string host;  // an address in digits
  uint16_t port = 0;
  std::string pin;
  bool operator==(const PeerAddress&) const = default;
};

struct PeerQuery {
  PeerAction action = PeerAction::kClose;
  uint64_t link = 0;  // the client's name for it
  PeerTicket ticket{};
  PeerAddress address;
  uint64_t storage = 0;
  uint64_t offset = 0;  // kSend: elements; kReceive: bytes
  uint64_t length = 0;  // kReceive
  TensorSpec spec;      // kSend
};

void encode(Writer& writer, const PeerQuery& query);
PeerQuery decode_peer_query(Reader& reader);

struct PeerAnswer {
  std::string reason;   // not empty: the link is closed
  PeerAddress address;  // to kListen
};

void encode(Writer& writer, const PeerAnswer& answer, PeerAction action);
PeerAnswer decode_peer_answer(Reader& reader, PeerAction action);

}  // namespace torch_remote::wire
