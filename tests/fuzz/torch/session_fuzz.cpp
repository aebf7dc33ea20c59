// Whole sessions: the server's interpreter with stub kernels (stub_kernels.h) applies the frames of
// one client. Each may end the session with a ProtocolError; no other error may happen, and a
// client must be able to read every answer.
//
//   input := 0:u8 mod 2 stub:u8*7 choices    a script (script.h)
//          | 1:u8 mod 2 stub:u8*7 frame*     as they stand on the wire, behind the handshake
#include <cstdlib>
#include <cstring>
#include <optional>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/log.h"
#include "schema_values.h"
#include "script.h"
#include "server/executor/context.h"
#include "server/executor/errors.h"
#include "server/executor/interpreter.h"
#include "stub_kernels.h"
#include "transport/frame.h"
#include "wire/limits.h"

namespace torch_remote::fuzz {
namespace {

constexpr size_t kStubChoices = 7;

// A session's interpreter without a connection. Waiting for an upload's bytes ends it.
class Session : public Receiver {
 public:
  Session()
      : devices_(c10::DeviceType::CPU, 2), interpreter_(devices_, table(), uploads_, replies_) {
    uploads_.end();
  }

  void frame(std::span<const std::byte> payload) override {
    expect_upload(payload);
    interpreter_.apply(payload);
    read_replies();
  }

  void chunk(uint64_t lane, uint64_t offset, std::span<const std::byte> bytes, bool last) override {
    const std::span<std::byte> target = uploads_.target(lane, offset, bytes.size());
    if (!bytes.empty())
      std::memcpy(target.data(), bytes.data(), bytes.size());
    uploads_.received(lane, bytes.size(), last);
  }

 private:
  static const server::OperatorTable& table() {
    static const server::OperatorTable kTable;
    return kTable;
  }

  // The reader thread: whatever is thrown there ends the connection.
  void expect_upload(std::span<const std::byte> payload) {
    try {
      uploads_.expect_from(payload);
    } catch (const c10::Error&) {
      throw ConnectionError("no memory for an upload");
    }
  }

  // As client::Session does. An answer that it could not read ends this process.
  void read_replies() noexcept {
    for (auto payload = replies_.take(); !payload.empty(); payload = replies_.take()) {
      wire::Reader reader(payload);
      while (!reader.empty()) {
        wire::ReceivedMessage message = wire::next_message(reader);
        if (message.tag != wire::Tag::kError) {
          wire::decode_reply(message.body);
        } else {
          message.body.varint();
          wire::decode_error(message.body);
        }
        message.body.finish();
      }
    }
  }

  const server::Devices devices_;
  server::Uploads uploads_;
  server::Replies replies_;
  server::Interpreter interpreter_;
};

void play(std::span<const std::byte> bytes, Session& session) {
  while (const auto frame = transport::parse_frame(bytes, transport::FrameLimits())) {
    bytes = bytes.subspan(transport::kHeaderSize + frame->payload.size());
    if (frame->header.kind == transport::FrameKind::kMessages)
      session.frame(frame->payload);
    if (frame->header.kind != transport::FrameKind::kBulk)
      continue;
    const auto chunk = frame->payload.subspan(transport::kBulkPrefixSize);
    const auto prefix = transport::decode_bulk_prefix(
        frame->payload.first<transport::kBulkPrefixSize>(), chunk.size());
    session.chunk(prefix.lane, prefix.offset, chunk, frame->header.last);
  }
}

void run(std::span<const std::byte> input) {
  set_stub_choices(input.subspan(1, kStubChoices));
  const auto rest = input.subspan(1 + kStubChoices);
  Session session;
  if ((static_cast<uint8_t>(input[0]) & 1) != 0)
    return play(rest, session);
  Script(rest, session).run();
}

}  // namespace
}  // namespace torch_remote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torch_remote;  // NOLINT
  if (size <= 1 + fuzz::kStubChoices)
    return 0;
  static const c10::InferenceMode kInferenceMode;
  static const wire::Context kContext = [] {
    at::set_num_threads(1);
    set_log_level(LogLevel::kError);
    fuzz::use_stub_kernels();
    return server::present_context();
  }();
  try {
    fuzz::run(std::as_bytes(std::span(data, size)));
  } catch (const ProtocolError&) {
  } catch (
      const ConnectionError&) {  // an upload that never came, or an answer too long for a message
  } catch (const server::DeviceLost&) {
  }
  server::apply_context(
      kContext);  // the process's settings, which the next input finds as this one did
  return 0;
}
