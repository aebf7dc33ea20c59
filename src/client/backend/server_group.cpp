#include "client/backend/server_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>

#include <netdb.h>

#include "base/error.h"
#include "client/process/errors.h"
#include "client/process/process.h"
#include "client/session/session.h"
#include "transport/address.h"
#include "wire/group.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

std::string to_numbers(const transport::SocketAddress& address) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address.get(), address.size(), text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    throw ConnectionError("the address of a server cannot be written as numbers");
  return text.data();
}

// The IP address at which other servers reach this session's server: TORCH_REMOTE_PEER_ADDRESS,
// else the one at which this client reaches it, which is the loopback address for an embedded
// server, a Unix socket and a command. Throws ConnectionError when the host is unknown.
std::string server_address(Session& session) {
  const char* const given = std::getenv("TORCH_REMOTE_PEER_ADDRESS");
  if (given != nullptr && *given != '\0')
    return given;
  const Endpoint& endpoint = session.link().endpoint();
  if (!endpoint.has_listener)
    return "127.0.0.1";
  const transport::Address address = transport::parse_address(endpoint.url);
  if (address.scheme == "unix")
    return "127.0.0.1";
  return to_numbers(transport::resolve(address).at(0));
}

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kWhat = "a process group";

// Never used twice, in any session.
uint64_t new_name() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::vector<std::byte> ask(Session& session, const wire::GroupQuery& query) {
  return session.query(wire::QueryKind::kGroup, kWhat,
                       [&](wire::Writer& writer) { encode(writer, query); });
}

uint64_t bytes_of(const std::vector<wire::GroupEntry>& entries) {
  constexpr uint64_t kOverhead = 64;  // of an entry in a store
  uint64_t bytes = 0;
  for (const wire::GroupEntry& entry : entries)
    bytes += entry.key.size() + entry.value.size() + kOverhead;
  return bytes;
}

void put(c10d::Store& store, const std::vector<wire::GroupEntry>& entries) {
  for (const wire::GroupEntry& entry : entries) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(entry.value.data());
    store.set(entry.key, std::vector<uint8_t>(bytes, bytes + entry.value.size()));
  }
}

std::vector<wire::GroupEntry> take(c10d::Store& store, const std::vector<std::string>& keys,
                                   milliseconds timeout) {
  const WithoutGil without_gil;
  store.wait(keys, timeout);
  std::vector<wire::GroupEntry> entries;
  for (const std::string& key : keys) {
    const std::vector<uint8_t> value = store.get(key);
    const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
    entries.push_back({key, {bytes, bytes + value.size()}});
  }
  return entries;
}

}  // namespace

ServerGroup::ServerGroup(DevicePlace place, c10d::Store& store, const GroupOptions& group)
    : session_(*place.session), name_(new_name()) {
  TORCH_CHECK_NOT_IMPLEMENTED((session_.welcome().capabilities & wire::kGroupsCapability) != 0,
                              "the server of ", session_.describe(place.device),
                              " is older than this client and has no process groups; update it");
  TORCH_CHECK_VALUE(group.size > 0 && static_cast<uint64_t>(group.size) <= wire::kMaxGroupSize,
                    "a process group has 1 to ", wire::kMaxGroupSize, " ranks, not ", group.size);
  try {
    open(store, group, place.device);
  } catch (...) {
    close();
    throw;
  }
}

void ServerGroup::open(c10d::Store& store, const GroupOptions& group, uint8_t device) {
  wire::GroupQuery query;
  query.group = name_;
  query.device = device;
  query.rank = static_cast<uint64_t>(group.rank);
  query.size = static_cast<uint64_t>(group.size);
  query.timeout =
      std::clamp<uint64_t>(static_cast<uint64_t>(std::max<int64_t>(group.timeout.count(), 1)), 1,
                           wire::kMaxGroupTimeout);
  query.address = server_address(session_);
  const auto end = Clock::now() + milliseconds(query.timeout);
  uint64_t bytes = 0;  // that the server has put into the store
  while (true) {
    const auto answer = decode_answer(session_, ask(session_, query), [&](wire::Reader& reader) {
      wire::GroupAnswer decoded = wire::decode_group_answer(reader);
      bytes += bytes_of(decoded.entries);
      wire::check_limit("bytes of a process group", bytes, wire::kMaxGroupBytes);
      return decoded;
    });
    if (!answer.is_open && answer.missing.empty())
      refuse_answer(session_, ProtocolError("a process group is not open and waits for no key"));
    put(store, answer.entries);
    if (answer.is_open)
      return;
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    TORCH_CHECK(left.count() > 0, "a process group on ", session_.describe(device),
                " was not open after ", query.timeout, " ms");
    query.action = wire::GroupAction::kGoOn;
    query.entries = take(store, answer.missing, left);
  }
}

ServerGroup::~ServerGroup() {
  close();
}

void ServerGroup::close() noexcept {
  if (in_forked_child() || is_exiting() || session_.link().is_lost())
    return;
  try {
    wire::GroupQuery query;
    query.group = name_;
    query.action = wire::GroupAction::kClose;
    ask(session_, query);
  } catch (...) {
    // The session is lost, or the user interrupts: the server closes it with the session.
  }
}

}  // namespace torch_remote::client
