#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "server/support.h"
#include "transport/connection.h"
#include "transport/stream.h"

namespace torch_remote::server::testing {

inline constexpr std::chrono::seconds kPatience{30};

// A client that sends messages as they are written in a test, after the handshake. Thread-safe.
class WireClient : private transport::Connection::Handler {
 public:
  explicit WireClient(std::unique_ptr<transport::Stream> stream)
      : connection_(std::move(stream), *this, {}) {
    connection_.start();
  }

  void send(FrameText& frame) {
    frame.bytes();  // ends the last message
    send(frame.writer.take());
  }

  void send(std::vector<std::byte> payload) {
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(std::move(payload));
    }
    connection_.flush();
  }

  void upload(const wire::Begin& begin, std::span<const std::byte> bytes) {
    FrameText frame;
    encode(frame.writer, begin);
    send(frame);
    connection_.send_bulk(begin.upload, bytes, nullptr, [](bool) {});
  }

  // Before a read whose answer comes as bulk bytes.
  void expect_bulk(uint64_t request, size_t bytes) {
    MutexLock lock(mutex_);
    bulk_[request].resize(bytes);
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

  // Why the connection ended: the server's words, or the error.
  std::string wait_for_end() {
    MutexLock lock(mutex_);
    const auto deadline = CondVar::Clock::now() + kPatience;
    while (!has_ended_)
      if (!changed_.wait_until(mutex_, deadline))
        throw std::runtime_error("no end");
    return cause_;
  }

  void close() { connection_.close("done"); }

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
    for (Reply& reply : decode_replies(payload))
      done(std::move(reply));
    connection_.applied(sequence);
  }

  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override {
    MutexLock lock(mutex_);
    return std::span(bulk_.at(lane)).subspan(offset, length);
  }

  void on_bulk(uint64_t lane, uint64_t /*offset*/, uint64_t /*length*/, bool last) override {
    if (!last)
      return;
    Reply reply;
    reply.request = lane;
    {
      MutexLock lock(mutex_);
      reply.body = bulk_.at(lane);
    }
    done(std::move(reply));
  }

  void on_end(std::exception_ptr cause) noexcept override {
    {
      MutexLock lock(mutex_);
      has_ended_ = true;
      cause_ = cause == nullptr ? connection_.peer_close_reason() : text_of(cause);
    }
    changed_.notify_all();
  }

  void done(Reply reply) {
    {
      MutexLock lock(mutex_);
      replies_[reply.request] = std::move(reply);
    }
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::vector<std::byte>> outgoing_ GUARDED_BY(mutex_);
  std::map<uint64_t, Reply> replies_ GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<std::byte>> bulk_ GUARDED_BY(mutex_);
  std::string cause_ GUARDED_BY(mutex_);
  bool has_ended_ GUARDED_BY(mutex_) = false;
  transport::Connection connection_;
};

}  // namespace torch_remote::server::testing
