#include "wire/agree.h"

#include <string>

#include "base/error.h"

namespace torch_remote::wire {
namespace {

std::string range(const char* who, Version min, Version max) {
  return std::string("the ") + who + " has " + std::to_string(static_cast<uint16_t>(min)) + " to " +
         std::to_string(static_cast<uint16_t>(max));
}

}  // namespace

Version agree_as(Side us, Version peer_min, Version peer_max) {
  try {
    return agree(peer_min, peer_max);
  } catch (const ProtocolError&) {
    const bool is_client = us == Side::kClient;
    const std::string ours = range(is_client ? "client" : "server", kMinVersion, kMaxVersion);
    const std::string theirs = range(is_client ? "server" : "client", peer_min, peer_max);
    const bool is_client_older = is_client == (kMaxVersion < peer_max);
    throw ProtocolError("no common protocol version: " + (is_client ? ours : theirs) + ", " +
                        (is_client ? theirs : ours) + "; install the newer torch-remote on the " +
                        (is_client_older ? "client's machine" : "server's machine") + " too");
  }
}

}  // namespace torch_remote::wire
