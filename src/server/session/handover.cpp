#include "server/session/handover.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

static_assert(std::is_trivially_copyable_v<Handover> && std::is_trivially_copyable_v<Proofs>);
static_assert(sizeof(Handover) != wire::kPreambleBytes, "a client that resumes has that length");

constexpr char kReady = 'r';
constexpr char kFailed = 'f';

// A request for proofs: this, then the client's HELLO, ours and the binding of the TLS connection.
using Lengths = std::array<uint32_t, 3>;
constexpr size_t kMaxRequest = sizeof(Lengths) + 3 * wire::kMaxHandshakeBytes;

template <typename Struct>
std::span<std::byte> bytes_of(Struct& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

void send(int control, std::span<const std::byte> message) {
  if (::send(control, message.data(), message.size(), MSG_NOSIGNAL) < 0)
    throw_connection_errno("telling the listener", errno);
}

// The next message, cut to `into`. Its whole length; -1 where there is none yet, 0 where there will
// be none. Descriptors that come with it are closed by the kernel.
ssize_t receive(int control, std::span<std::byte> into) {
  const ssize_t got = ::recv(control, into.data(), into.size(), MSG_DONTWAIT | MSG_TRUNC);
  if (got >= 0)
    return got;
  return errno == EAGAIN || errno == EINTR ? -1 : 0;
}

bool wait_for_message(int control, std::chrono::milliseconds time) {
  pollfd polled{control, POLLIN, 0};
  return ::poll(&polled, 1, static_cast<int>(time.count())) == 1;
}

Proofs request_proofs(int control, std::span<const std::byte> client,
                      std::span<const std::byte> server, std::span<const std::byte> binding) {
  Lengths lengths{static_cast<uint32_t>(client.size()), static_cast<uint32_t>(server.size()),
                  static_cast<uint32_t>(binding.size())};
  std::vector<std::byte> request;
  for (const std::span<const std::byte> part :
       {std::span<const std::byte>(bytes_of(lengths)), client, server, binding})
    request.insert(request.end(), part.begin(), part.end());
  send(control, request);
  while (wait_for_message(control, kHandshakeTime)) {
    Proofs proofs;
    const ssize_t got = receive(control, bytes_of(proofs));
    if (got == 0)
      break;
    if (got == sizeof(Proofs))  // else it is a client that resumes, before there is a session
      return proofs;
  }
  throw ConnectionError("the listener, which knows the token, does not answer");
}

// The three parts of a request; nothing where its lengths are wrong.
std::optional<std::array<std::span<const std::byte>, 3>> parts_of(
    std::span<const std::byte> request) {
  Lengths lengths{};
  if (request.size() < sizeof lengths)
    return std::nullopt;
  std::memcpy(lengths.data(), request.data(), sizeof lengths);
  std::span<const std::byte> rest = request.subspan(sizeof lengths);
  std::array<std::span<const std::byte>, 3> parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (lengths[i] > rest.size())
      return std::nullopt;
    parts[i] = rest.first(lengths[i]);
    rest = rest.subspan(lengths[i]);
  }
  return parts;
}

}  // namespace

void tell_ready(const Fd& control) {
  send(control.get(), std::as_bytes(std::span(&kReady, 1)));
}

void tell_failure(const Fd& control, const std::string& reason) {
  const std::string message = kFailed + reason.substr(0, Report::kMaxReason);
  send(control.get(), std::as_bytes(std::span(message)));
}

std::optional<HandedOver> receive_client(const Fd& control) {
  HandedOver given;
  std::vector<Fd> passed = receive_descriptors(control, bytes_of(given.told));
  if (passed.empty())
    return std::nullopt;
  given.client = std::move(passed[0]);
  if (passed.size() > 1)
    given.call_log = std::move(passed[1]);
  return given;
}

MakeProofs proofs_by_listener(int control) {
  return [control](std::span<const std::byte> client, std::span<const std::byte> server,
                   std::span<const std::byte> binding) {
    return request_proofs(control, client, server, binding);
  };
}

Report read_report(const Fd& control) {
  std::array<std::byte, 1 + Report::kMaxReason> message{};
  const ssize_t got = receive(control.get(), message);
  if (got <= 0)
    return {};
  if (got == 1 && message[0] == std::byte{kReady})
    return {Report::Kind::kReady, {}};
  Report failed{Report::Kind::kFailed, "its process sent an unknown report"};
  if (message[0] != std::byte{kFailed})
    return failed;
  const size_t length = std::min<size_t>(static_cast<size_t>(got), message.size()) - 1;
  failed.reason.assign(reinterpret_cast<const char*>(message.data()) + 1, length);
  return failed;
}

Passed hand_over(const Fd& control, const Handover& told, const Fd& client, const Fd& call_log) {
  const std::array passed{client.get(), call_log.get()};
  return pass_descriptors(control, std::as_bytes(std::span(&told, 1)),
                          std::span(passed).first(call_log ? 2 : 1));
}

bool answer_proof_request(const Fd& control, const std::string& token) {
  std::vector<std::byte> request(kMaxRequest);
  const ssize_t got = receive(control.get(), request);
  if (got < 0)
    return false;
  request.resize(std::min(static_cast<size_t>(got), request.size()));
  const auto parts = parts_of(request);
  if (!parts)
    return true;  // the session gets no answer
  const auto& [hello_client, hello_server, binding] = *parts;
  const Proofs proofs = proofs_with(token)(hello_client, hello_server, binding);
  ::send(control.get(), &proofs, sizeof proofs, MSG_DONTWAIT | MSG_NOSIGNAL);
  return true;
}

}  // namespace torch_remote::server
