#include "client/backend/server_address.h"

#include <array>
#include <cstdlib>

#include <netdb.h>

#include "base/error.h"
#include "client/session/session.h"
#include "transport/address.h"

namespace torch_remote::client {
namespace {

std::string to_numbers(const transport::SocketAddress& address) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address.get(), address.size(), text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    throw ConnectionError("the address of a server cannot be written as numbers");
  return text.data();
}

}  // namespace

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

}  // namespace torch_remote::client
