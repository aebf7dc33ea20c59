#pragma once

#include <cstring>
#include <span>

#include "base/error.h"
#include "script.h"
#include "script_files.h"
#include "server/handlers/interpreter.h"

namespace torch_remote::fuzz {

// A session's interpreter without a connection. Waiting for an upload's bytes ends it.
class Session : public Receiver {
 public:
  Session()
      : devices_(c10::DeviceType::CPU, 2),
        interpreter_(devices_, table(), uploads_, replies_, {.files = shared_files()}) {
    uploads_.end();
  }

  void frame(std::span<const std::byte> payload) override {
    expect_upload(payload);
    if (const auto call = wire::find_cancel(payload))
      interpreter_.cancel_to(*call);
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

}  // namespace torch_remote::fuzz
