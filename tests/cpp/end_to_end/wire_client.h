#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "client/handshake.h"
#include "server/support.h"
#include "transport/connection.h"
#include "transport/stream.h"

// A client that sends messages as they are written in a test, to a real server.
namespace torch_remote::end_to_end {

using server::testing::FrameText;
using server::testing::Reply;

inline constexpr std::chrono::seconds kPatience{30};

// Thread-safe.
class WireClient : private transport::Connection::Handler {
 public:
  // Shakes hands, which waits for the server.
  explicit WireClient(std::unique_ptr<transport::Stream> stream)
      : welcome(client::shake_hands(*stream, "")), connection_(std::move(stream), *this, {}) {
    connection_.start();
  }

  void send(FrameText& frame) { send(frame.writer.take()); }

  void send(std::vector<std::byte> payload) {
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(std::move(payload));
    }
    connection_.flush();
  }

  Reply wait(uint64_t request) {
    MutexLock lock(mutex_);
    const auto deadline = CondVar::Clock::now() + kPatience;
    while (!replies_.contains(request)) {
      if (has_ended_)
        throw std::runtime_error("the session ended: " + cause_);
      if (!changed_.wait_until(mutex_, deadline))
        throw std::runtime_error("no reply");
    }
    return replies_[request];
  }

  // Why the connection ended: the server's words, or the error. "(still open)" when it did not.
  std::string wait_for_end() {
    std::string cause;
    {
      MutexLock lock(mutex_);
      const auto deadline = CondVar::Clock::now() + kPatience;
      while (!has_ended_) {
        if (!changed_.wait_until(mutex_, deadline))
          return "(still open)";
      }
      cause = cause_;
    }
    return cause.empty() ? connection_.peer_close_reason() : cause;
  }

  void close() { connection_.close("done"); }

  const wire::Welcome welcome;

 private:
  std::vector<std::byte> take_messages(uint32_t& /*calls*/) override {
    MutexLock lock(mutex_);
    if (outgoing_.empty())
      return {};
    std::vector<std::byte> payload = std::move(outgoing_.front());
    outgoing_.pop_front();
    return payload;
  }

  void on_messages(uint64_t sequence, std::vector<std::byte> payload) override {
    {
      MutexLock lock(mutex_);
      for (Reply& reply : server::testing::decode_replies(payload))
        replies_[reply.request] = std::move(reply);
    }
    changed_.notify_all();
    connection_.applied(sequence);
  }

  std::span<std::byte> bulk_target(uint64_t, uint64_t, uint64_t) override {
    throw std::runtime_error("no bulk bytes are expected");
  }

  void on_bulk(uint64_t, uint64_t, uint64_t, bool) override {}

  void on_end(std::exception_ptr cause) noexcept override {
    MutexLock lock(mutex_);
    has_ended_ = true;
    try {
      if (cause != nullptr)
        std::rethrow_exception(cause);
    } catch (const std::exception& error) {
      cause_ = error.what();
    }
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::vector<std::byte>> outgoing_ GUARDED_BY(mutex_);
  std::map<uint64_t, Reply> replies_ GUARDED_BY(mutex_);
  std::string cause_ GUARDED_BY(mutex_);
  bool has_ended_ GUARDED_BY(mutex_) = false;
  transport::Connection connection_;
};

}  // namespace torch_remote::end_to_end
