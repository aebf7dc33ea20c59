#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "client/link/endpoint.h"
#include "transport/connection.h"
#include "transport/stream.h"
#include "wire/handshake.h"
#include "wire/messages.h"

// The server's end of a connection, as the tests of src/client script it.
namespace torch_remote::client::testing {

using Bytes = std::vector<std::byte>;

inline constexpr std::chrono::seconds kPatience{20};

// --- the handshake

inline void send(transport::Stream& stream, std::span<const std::byte> bytes) {
  const std::array<std::span<const std::byte>, 1> parts = {bytes};
  stream.write(parts);
}

inline void send_block(transport::Stream& stream, const Bytes& body) {
  const auto length = static_cast<uint32_t>(body.size());
  send(stream, std::as_bytes(std::span(&length, 1)));
  send(stream, body);
}

inline Bytes read_exactly(transport::Stream& stream, size_t count) {
  Bytes bytes(count);
  for (size_t at = 0; at < count;) {
    const size_t got = stream.read_some(std::span(bytes).subspan(at));
    if (got == 0)
      throw ConnectionError("the client hung up");
    at += got;
  }
  return bytes;
}

inline Bytes read_block(transport::Stream& stream) {
  uint32_t length = 0;
  std::memcpy(&length, read_exactly(stream, sizeof length).data(), sizeof length);
  return read_exactly(stream, length);
}

template <typename Message>
Bytes body_of(const Message& message) {
  wire::Writer writer;
  encode(writer, message);
  return writer.take();
}

// Reads the client's preamble and HELLO; the body of the HELLO comes back.
inline Bytes read_client_hello(transport::Stream& stream) {
  const Bytes preamble = read_exactly(stream, wire::kPreambleBytes);
  wire::decode_preamble(std::span<const std::byte, wire::kPreambleBytes>(preamble));
  return read_block(stream);
}

// The HELLO of a server that knows `token`, or of one that wants none ("").
inline wire::Hello server_hello(const std::string& token, const Bytes& client_hello) {
  wire::Hello hello;
  hello.nonce.fill(std::byte{7});
  hello.torch_version = "2.13.0";
  if (token.empty())
    return hello;
  hello.proof = wire::make_proof(token, wire::Side::kServer, client_hello, body_of(hello));
  hello.has_proof = true;
  return hello;
}

inline wire::Welcome a_welcome() {
  wire::Welcome welcome;
  welcome.session = "1a2b3c4d";
  welcome.host = "fake-host";
  welcome.torch_version = "2.13.0";
  welcome.devices.emplace_back();
  return welcome;
}

// A server without a token that lets everybody in.
inline void let_in(transport::Stream& stream, uint64_t capabilities = wire::kCapabilities) {
  wire::Hello hello = server_hello("", read_client_hello(stream));
  hello.capabilities = capabilities;
  send_block(stream, body_of(hello));
  wire::decode_proof(read_block(stream));
  send_block(stream, body_of(a_welcome()));
}

// What a session opens: this stream, once.
inline Endpoint endpoint_of(std::unique_ptr<transport::Stream> stream) {
  Endpoint endpoint;
  endpoint.url = "fake://server";
  endpoint.open = [held = std::make_shared<std::unique_ptr<transport::Stream>>(std::move(stream))] {
    return std::move(*held);
  };
  return endpoint;
}

// --- messages

// What of a client's message the tests look at.
struct Message {
  wire::Tag tag = wire::Tag::kClose;
  // RESIZE: storage. QUERY, READ: request. BEGIN: upload. GENERATOR: its name. THREAD, GO_ON: the
  // thread.
  uint64_t number = 0;
  uint64_t detail = 0;          // RESIZE: bytes. GENERATOR: seed
  uint8_t device = 0;           // RESIZE
  std::vector<uint64_t> names;  // FREE
};

inline Message decode_message(wire::ReceivedMessage received) {
  wire::Reader& reader = received.body;
  Message message;
  message.tag = received.tag;
  switch (message.tag) {
    case wire::Tag::kResize: {
      const wire::Resize resize = wire::decode_resize(reader);
      message.number = resize.storage;
      message.detail = resize.nbytes;
      message.device = resize.device;
      return message;
    }
    case wire::Tag::kFree:
      wire::decode_free(reader, [&](uint64_t name) { message.names.push_back(name); });
      return message;
    case wire::Tag::kGenerator: {
      const wire::GeneratorMessage generator = wire::decode_generator(reader);
      message.number = generator.name;
      message.detail = generator.seed;
      return message;
    }
    case wire::Tag::kQuery:
      message.number = wire::decode_query(reader).request;
      return message;
    case wire::Tag::kRead:
      message.number = wire::decode_read(reader).request;
      return message;
    case wire::Tag::kBegin:
      message.number = wire::decode_begin(reader).upload;
      return message;
    case wire::Tag::kCall:
    case wire::Tag::kSignature:
    case wire::Tag::kContext:
      return message;
    case wire::Tag::kThread:
    case wire::Tag::kGoOn:
      message.number = wire::decode_thread(reader);
      return message;
    default:
      throw ProtocolError("the fake server does not know this message");
  }
}

inline std::vector<Message> decode_messages(std::span<const std::byte> payload) {
  std::vector<Message> messages;
  for (wire::Reader reader(payload); !reader.empty();) {
    Message message = decode_message(wire::next_message(reader));
    if (message.tag != wire::Tag::kThread)  // the first of every session: not what tests look at
      messages.push_back(std::move(message));
  }
  return messages;
}

// Keeps what a session sends and answers what the test says. It applies no frame before it is told
// to. Thread-safe.
class FakeServer : private transport::Connection::Handler {
 public:
  explicit FakeServer(std::unique_ptr<transport::Stream> stream) : stream_(std::move(stream)) {}

  // Before start(): the bare stream, for a handshake of the test's own.
  transport::Stream& stream() { return *stream_; }

  // After the handshake: frames.
  void start() {
    transport::Connection::Handler& handler = *this;
    connection_ = std::make_unique<transport::Connection>(std::move(stream_), handler,
                                                          transport::Connection::Options());
    connection_->start();
  }

  // The messages of each frame so far, when there are that many frames.
  std::vector<std::vector<Message>> wait_for_frames(size_t count) {
    wait_until([&] { return frames_.size() >= count; });
    MutexLock lock(mutex_);
    return frames_;
  }

  // All messages so far, when there are that many.
  std::vector<Message> wait_for_messages(size_t count) {
    std::vector<Message> all;
    wait_until([&] {
      size_t there = 0;
      for (const auto& frame : frames_)
        there += frame.size();
      return there >= count;
    });
    MutexLock lock(mutex_);
    for (const auto& frame : frames_)
      all.insert(all.end(), frame.begin(), frame.end());
    return all;
  }

  Bytes wait_for_bulk(uint64_t lane) {
    wait_until([&] { return last_lane_ == lane; });
    MutexLock lock(mutex_);
    return bulk_;
  }

  void wait_for_end() {
    wait_until([&] { return has_ended_; });
  }

  // Of a client that has closed the session; empty if it has hung up.
  std::string wait_for_close_reason() {
    wait_for_end();
    return connection_->peer_close_reason();
  }

  // Everything received so far is done.
  void apply_all() {
    uint64_t sequence = 0;
    {
      MutexLock lock(mutex_);
      sequence = last_sequence_;
    }
    connection_->applied(sequence);
  }

  void reply(uint64_t request, std::span<const std::byte> body = {}) {
    wire::Writer writer;
    wire::encode_reply(writer, request, body);
    send_payload(writer.take());
  }

  void refuse(uint64_t request, const wire::Error& error) {
    wire::Writer writer;
    wire::encode_error(writer, request, error);
    send_payload(writer.take());
  }

  void send_payload(Bytes payload) {
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(std::move(payload));
    }
    connection_->flush();
  }

  void send_bulk(uint64_t lane, std::span<const std::byte> bytes) {
    auto owner = std::make_shared<Bytes>(bytes.begin(), bytes.end());
    connection_->send_bulk(lane, *owner, owner, [](bool) {});
  }

  void close(const std::string& reason) { connection_->close(reason); }

  void die() { connection_->abort(); }

 private:
  Bytes take_messages(uint32_t& calls) override {
    calls = 0;
    MutexLock lock(mutex_);
    if (outgoing_.empty())
      return {};
    Bytes payload = std::move(outgoing_.front());
    outgoing_.pop_front();
    return payload;
  }

  void on_messages(uint64_t sequence, Bytes payload) override {
    auto messages = decode_messages(payload);
    MutexLock lock(mutex_);
    frames_.push_back(std::move(messages));
    last_sequence_ = sequence;
    changed_.notify_all();
  }

  std::span<std::byte> bulk_target(uint64_t /*lane*/, uint64_t offset, uint64_t length) override {
    MutexLock lock(mutex_);
    bulk_.resize(offset + length);
    return std::span(bulk_).subspan(offset, length);
  }

  void on_bulk(uint64_t lane, uint64_t /*offset*/, uint64_t /*length*/, bool last) override {
    MutexLock lock(mutex_);
    if (last)
      last_lane_ = lane;
    changed_.notify_all();
  }

  void on_end(std::exception_ptr /*cause*/) noexcept override {
    MutexLock lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

  template <typename Condition>
  void wait_until(Condition condition) {
    MutexLock lock(mutex_);
    const auto deadline = CondVar::Clock::now() + kPatience;
    while (!condition())
      if (!changed_.wait_until(mutex_, deadline))
        throw std::runtime_error("the fake server waited in vain");
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::vector<Message>> frames_ GUARDED_BY(mutex_);
  std::deque<Bytes> outgoing_ GUARDED_BY(mutex_);
  Bytes bulk_ GUARDED_BY(mutex_);
  uint64_t last_lane_ GUARDED_BY(mutex_) = 0;
  uint64_t last_sequence_ GUARDED_BY(mutex_) = 0;
  bool has_ended_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<transport::Stream> stream_;
  std::unique_ptr<transport::Connection> connection_;
};

}  // namespace torch_remote::client::testing
