#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "support.h"
#include "transport/connection.h"
#include "transport/stream.h"

namespace torch_remote::server::testing {

inline constexpr std::chrono::seconds kPatience{10};

// The client's end of a connection to a session in this process.
class Client : private transport::Connection::Handler {
 public:
  explicit Client(std::unique_ptr<transport::Stream> stream)
      : connection_(std::move(stream), *this, {}) {
    connection_.start();
  }

  void send(FrameText& frame) {
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(frame.writer.take());
    }
    connection_.flush();
  }

  void send_bytes(std::vector<std::byte> bytes) {
    {
      MutexLock lock(mutex_);
      outgoing_.push_back(std::move(bytes));
    }
    connection_.flush();
  }

  void upload(const wire::Begin& begin, std::span<const std::byte> bytes) {
    FrameText frame;
    encode(frame.writer, begin);
    send(frame);
    connection_.send_bulk(begin.upload, bytes, nullptr, [](bool) {});
  }

  void expect_bulk(uint64_t request, size_t bytes) {
    MutexLock lock(mutex_);
    bulk_[request].resize(bytes);
  }

  Reply wait(uint64_t request) {
    MutexLock lock(mutex_);
    while (!replies_.contains(request)) {
      if (has_ended_ || !changed_.wait_for(mutex_, kPatience))
        throw std::runtime_error("no reply");
    }
    return replies_[request];
  }

  std::string wait_for_end() {
    {
      MutexLock lock(mutex_);
      while (!has_ended_) {
        if (!changed_.wait_for(mutex_, kPatience))
          throw std::runtime_error("no end");
      }
    }
    return connection_.peer_close_reason();
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

  void on_end(std::exception_ptr /*cause*/) noexcept override {
    {
      MutexLock lock(mutex_);
      has_ended_ = true;
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
  bool has_ended_ GUARDED_BY(mutex_) = false;
  transport::Connection connection_;
};

}  // namespace torch_remote::server::testing
