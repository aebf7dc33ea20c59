#include "client/link/handshake.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include <unistd.h>

#include <torch/version.h>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "transport/deadline.h"
#include "transport/tls_error.h"
#include "wire/handshake.h"

namespace torch_remote::client {
namespace {

using Bytes = std::vector<std::byte>;

size_t read_some(transport::Stream& stream, std::span<std::byte> into) {
  try {
    return stream.read_some(into);
  } catch (const transport::TlsError&) {
    throw;
  } catch (const ConnectionError& error) {
    throw HandshakeCut(error.what());
  }
}

void read_exactly(transport::Stream& stream, std::span<std::byte> into) {
  while (!into.empty()) {
    const size_t got = read_some(stream, into);
    if (got == 0)
      throw HandshakeCut("the server closed the connection during the handshake");
    into = into.subspan(got);
  }
}

// What another program on the port speaks, by its first bytes; empty if they mean nothing to us.
std::string protocol_of(const wire::BlockHead& head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text == "HTTP")
    return ": it speaks HTTP";
  if (text == "SSH-")
    return ": it speaks SSH (for ssh, the URL is ssh://host)";
  if (text.starts_with("\x15\x03") || text.starts_with("\x16\x03"))
    return ": it speaks TLS (for a server with TLS, the URL is tls://host:port)";
  return {};
}

// The time limits of a first handshake. A server without a process for this client says so from
// time to time; each time both limits begin again.
class Patience {
 public:
  Patience(transport::Stream& stream, std::chrono::seconds answer_time)
      : stream_(stream), answer_time_(answer_time) {
    restart();
    current = this;
  }

  ~Patience() { current = nullptr; }

  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  // That of the handshake of this thread: a TLS stream reads the words of a listener by itself.
  // Null while a client resumes, which waits for no process.
  static thread_local Patience* current;

  // The server has said that this client waits.
  void note_waiting() {
    const auto now = std::chrono::steady_clock::now();
    if (!told_)
      log(LogLevel::kWarning, "the server has no process ready for this client, which waits",
          {{"server", stream_.peer()}});
    told_ = told_.value_or(now);
    if (now - *told_ > kQueueTime)
      throw ConnectionError("the server has had no process ready for this client in " +
                            std::to_string(kQueueTime.count()) + " minutes; it has too much to do");
    restart();
  }

  // The server has answered.
  void end_silence() { silence_.reset(); }

  // Why the stream was shut down; empty: not by a limit of this.
  std::string describe_end() {
    const auto within = [](std::chrono::seconds time) {
      return " within " + std::to_string(time.count()) + " s";
    };
    if (silence_ && silence_->has_passed())
      return "it took the connection and said nothing" + within(answer_time_) +
             "; it is stopped or overloaded, or it is no torch-remote server";
    if (all_ && all_->has_passed())
      return "the server did not finish the handshake" + within(kStartTime) +
             "; it is stopped, or its devices take too long to start";
    return {};
  }

 private:
  void restart() {
    silence_.reset();
    silence_.emplace(stream_, answer_time_);
    all_.reset();
    all_.emplace(stream_, kStartTime);
  }

  transport::Stream& stream_;
  const std::chrono::seconds answer_time_;
  std::optional<std::chrono::steady_clock::time_point> told_;  // first, that this client waits
  std::optional<transport::Deadline> silence_;
  std::optional<transport::Deadline> all_;
};

thread_local Patience* Patience::current = nullptr;

// Reads the head of what the server sends first, after its words that this client waits.
wire::BlockHead read_first_head(transport::Stream& stream) {
  Patience* const patience = Patience::current;
  const wire::WaitingBlock waiting = wire::waiting_block();
  wire::WaitingBlock read{};
  const auto head = std::span(read).first<sizeof(wire::BlockHead)>();
  while (true) {
    read_exactly(stream, head);
    if (patience == nullptr || !std::ranges::equal(head, std::span(waiting).first(head.size())))
      break;
    read_exactly(stream, std::span(read).subspan(head.size()));
    if (read != waiting)
      throw ProtocolError("the server sends a block of two bytes before its HELLO");
    patience->note_waiting();
  }
  wire::BlockHead first;
  std::ranges::copy(head, first.begin());
  return first;
}

// The first block that the server sends. What is no block is from another program.
Bytes read_first_block(transport::Stream& stream) {
  const wire::BlockHead head = read_first_head(stream);
  uint32_t length = 0;
  std::string why = "an empty block";
  try {
    length = wire::decode_block_head(head);
  } catch (const ProtocolError& error) {
    why = error.what();
  }
  if (length == 0) {
    const std::string spoken = protocol_of(head);
    throw ProtocolError("this is no torch-remote server" +
                        (spoken.empty() ? " (its first bytes: " + why + ")" : spoken) +
                        "; check the port");
  }
  Bytes body(length);
  read_exactly(stream, body);
  return body;
}

Bytes read_block(transport::Stream& stream) {
  wire::BlockHead head;
  read_exactly(stream, head);
  Bytes body(wire::decode_block_head(head));
  read_exactly(stream, body);
  return body;
}

void write_block(transport::Stream& stream, std::span<const std::byte> before, const Bytes& body) {
  const wire::BlockHead head = wire::encode_block_head(body.size());
  const std::array<std::span<const std::byte>, 3> parts = {before, head, body};
  try {
    stream.write(parts);
  } catch (const ConnectionError& error) {
    throw HandshakeCut(error.what());
  }
}

template <typename Message>
Bytes body_of(const Message& message) {
  wire::Writer writer;
  encode(writer, message);
  return writer.take();
}

// The TLS handshake, where the stream has one.
void secure(transport::Stream& stream, std::span<const std::byte> preamble) {
  try {
    stream.secure(preamble);
  } catch (const transport::TlsError&) {
    throw;
  } catch (const ConnectionError& error) {
    throw HandshakeCut(error.what());
  }
}

// The key that both ends must know, with texts for the user if the server does not.
struct Key {
  std::string secret;
  const char* if_unproven;
  const char* if_wrong;
};

Key token_key(const std::string& token) {
  return {token,
          "the server does not prove that it knows the token: it has none, or is another server; "
          "on this side give no token (unset TORCH_REMOTE_TOKEN_FILE and TORCH_REMOTE_TOKEN, or "
          "connect() with token=\"\"), or start the server with --token-file",
          "the server does not know this token (wrong token, or another server); "
          "TORCH_REMOTE_TOKEN_FILE on this side, or token_file= of connect(), must name a copy of "
          "the server's --token-file"};
}

Key session_key(const Ticket& ticket) {
  return {wire::resume_key(ticket.secret, ticket.token),
          "the server does not prove that it knows the session; is it another server?",
          "the server does not know this session (another session's secret, or another server)"};
}

// Checks that the server knows the key before this side proves that it does.
wire::ProofMessage prove(const Key& key, const Bytes& ours, wire::Hello theirs,
                         std::span<const std::byte> binding) {
  wire::ProofMessage message;
  if (key.secret.empty())
    return message;
  if (!theirs.has_proof)
    throw ConnectionError(key.if_unproven);
  const wire::Proof proof = theirs.proof;
  theirs.has_proof = false;
  const Bytes bare = body_of(theirs);
  if (!wire::equal_proofs(proof,
                          wire::make_proof(key.secret, wire::Side::kServer, ours, bare, binding)))
    throw ConnectionError(key.if_wrong);
  message.has_proof = true;
  message.proof = wire::make_proof(key.secret, wire::Side::kClient, ours, bare, binding);
  return message;
}

// A server that refuses sends the reason instead of a greeting.
void check_not_refused(const Bytes& answer) {
  if (wire::is_welcome(answer))
    throw RefusedByServer(wire::decode_welcome(answer).reason);
}

wire::Welcome exchange(transport::Stream& stream, const wire::Preamble& preamble, uint64_t received,
                       const Key& key) {
  wire::Hello hello;
  random_bytes(hello.nonce);
  hello.torch_version = TORCH_VERSION;
  hello.received = received;
  hello.machine = wire::this_machine();
  hello.process = static_cast<uint64_t>(getpid());
  const Bytes ours = body_of(hello);
  const auto first = wire::encode_preamble(preamble);
  secure(stream, first);
  write_block(stream, first, ours);

  const Bytes answer = read_first_block(stream);
  if (Patience::current != nullptr)
    Patience::current->end_silence();
  check_not_refused(answer);
  const wire::Hello theirs = wire::decode_hello(answer);
  wire::agree_as(wire::Side::kClient, theirs.min, theirs.max);
  if (key.secret.empty() && theirs.has_proof) {
    throw ConnectionError(
        "the server wants a token; on this side set TORCH_REMOTE_TOKEN_FILE to a copy of the "
        "server's --token-file, or TORCH_REMOTE_TOKEN to what is in it, or give connect() a "
        "token_file=");
  }
  write_block(stream, {}, body_of(prove(key, ours, theirs, stream.channel_binding())));

  wire::Welcome welcome = wire::decode_welcome(read_block(stream));
  if (!welcome.ok())
    throw RefusedByServer(welcome.reason);
  welcome.capabilities = theirs.capabilities;
  return welcome;
}

}  // namespace

std::vector<std::byte> read_words(transport::Stream& bare) {
  const wire::BlockHead first = read_first_head(bare);
  return {first.begin(), first.end()};
}

wire::Welcome shake_hands(transport::Stream& stream, const std::string& token,
                          std::chrono::seconds answer_time) {
  Patience patience(stream, answer_time);
  wire::Preamble preamble;
  preamble.route = wire::kAwaitsProcess;
  wire::Welcome welcome;
  try {
    welcome = exchange(stream, preamble, 0, token_key(token));
  } catch (const HandshakeCut&) {
    if (const std::string why = patience.describe_end(); !why.empty())
      throw ConnectionError(why);
    throw;
  }
  if (welcome.answer != wire::Answer::kNew || welcome.devices.empty())
    throw ProtocolError("the server has no device");
  return welcome;
}

uint64_t shake_hands_again(transport::Stream& stream, const Ticket& ticket, uint64_t capabilities,
                           uint64_t received, std::chrono::milliseconds time) {
  const transport::Deadline deadline(stream, time);
  wire::Preamble preamble;
  preamble.intent = 1;
  preamble.route = wire::session_route(ticket.session);
  const Key key = session_key(ticket);
  if ((capabilities & wire::kRouteProofCapability) != 0)
    preamble.route_proof = wire::route_proof(key.secret);
  const wire::Welcome welcome = exchange(stream, preamble, received, key);
  if (welcome.answer != wire::Answer::kResumed)
    throw ProtocolError("the server began a session where one was to be resumed");
  return welcome.received;
}

}  // namespace torch_remote::client
