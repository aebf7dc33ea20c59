#include "wire/peers.h"

#include <algorithm>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

constexpr uint64_t kMaxAddressText = 256;  // an address in digits, a pin
constexpr uint64_t kMaxPort = 65535;

void encode(Writer& writer, const PeerAddress& address) {
  writer.text(address.host);
  writer.varint(address.port);
  writer.text(address.pin);
}

PeerAddress decode_address(Reader& reader) {
  PeerAddress address;
  address.host = reader.text(kMaxAddressText, "characters of a peer's address");
  address.port = static_cast<uint16_t>(reader.count(kMaxPort, "port of a peer"));
  address.pin = reader.text(kMaxAddressText, "characters of a peer's pin");
  if (address.host.empty() || address.port == 0)
    throw ProtocolError("a peer without an address or a port");
  return address;
}

bool has_ticket(PeerAction action) {
  return action == PeerAction::kListen || action == PeerAction::kConnect;
}

}  // namespace

void encode(Writer& writer, const PeerQuery& query) {
  writer.u8(static_cast<uint8_t>(query.action));
  writer.varint(query.link);
  if (has_ticket(query.action))
    writer.raw(query.ticket);
  if (query.action == PeerAction::kConnect)
    encode(writer, query.address);
  if (query.action != PeerAction::kSend && query.action != PeerAction::kReceive)
    return;
  writer.varint(query.storage);
  writer.varint(query.offset);
  if (query.action == PeerAction::kSend)
    encode(writer, query.spec);
  else
    writer.varint(query.length);
}

PeerQuery decode_peer_query(Reader& reader) {
  PeerQuery query;
  const uint8_t action = reader.u8();
  if (action > static_cast<uint8_t>(PeerAction::kClose))
    throw ProtocolError("no peer action " + std::to_string(action));
  query.action = static_cast<PeerAction>(action);
  query.link = reader.name();
  if (has_ticket(query.action))
    std::ranges::copy(reader.raw(query.ticket.size()), query.ticket.begin());
  if (query.action == PeerAction::kConnect)
    query.address = decode_address(reader);
  if (query.action != PeerAction::kSend && query.action != PeerAction::kReceive)
    return query;
  query.storage = reader.name();
  query.offset = reader.varint();
  if (query.action == PeerAction::kSend)
    query.spec = decode_spec(reader);
  else
    query.length = reader.count(kMaxStorageBytes, "bytes of a copy");
  return query;
}

void encode(Writer& writer, const PeerAnswer& answer, PeerAction action) {
  writer.u8(answer.reason.empty() ? 1 : 0);
  if (!answer.reason.empty())
    writer.text(answer.reason);
  else if (action == PeerAction::kListen)
    encode(writer, answer.address);
}

PeerAnswer decode_peer_answer(Reader& reader, PeerAction action) {
  PeerAnswer answer;
  const uint8_t is_good = reader.u8();
  if (is_good > 1)
    throw ProtocolError("a flag of a peer's answer is " + std::to_string(is_good));
  if (is_good == 0) {
    answer.reason = reader.readable_text(kMaxText, "reason");
    if (answer.reason.empty())
      throw ProtocolError("a link is refused without a reason");
  } else if (action == PeerAction::kListen) {
    answer.address = decode_address(reader);
  }
  return answer;
}

}  // namespace torch_remote::wire
