// Whole sessions: the server's interpreter with stub kernels (stub_kernels.h) applies the frames of
// one client. Each may end the session with a ProtocolError; no other error may happen, and a
// client must be able to read every answer.
//
//   input := 0:u8 mod 2 stub:u8*7 choices    a script (script.h)
//          | 1:u8 mod 2 stub:u8*7 frame*     as they stand on the wire, behind the handshake
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/log.h"
#include "script.h"
#include "server/device/context.h"
#include "server/executor/failures.h"
#include "session.h"
#include "stub_kernels.h"
#include "transport/frame.h"

namespace torch_remote::fuzz {
namespace {

constexpr size_t kStubChoices = 7;

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
  Script(Draw(rest), session).run();
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
