#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/connection.h"

namespace torch_remote::transport {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A handler that remembers what happened and lets a test wait for it. Thread-safe.
class RecordingHandler : public Connection::Handler {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  // Messages to be taken by the writer, one frame each.
  void put(std::string_view text, uint32_t calls = 1) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    outbox_.emplace_back(bytes_of(text), calls);
  }

  bool has_taken_all() override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return took_all_;
  }

  Bytes take_messages(uint32_t& calls) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++takes_;
    changed_.notify_all();
    if (outbox_.empty())
      return {};
    took_all_ = outbox_.size() == 1;
    calls = outbox_.front().second;
    Bytes payload = std::move(outbox_.front().first);
    outbox_.pop_front();
    return payload;
  }

  void on_messages(uint64_t sequence, Bytes payload) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back(text_of(payload));
    last_sequence_ = sequence;
    changed_.notify_all();
  }

  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override
      EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Bytes& bytes = lanes_[lane];
    if (bytes.size() < offset + length)
      bytes.resize(offset + length);
    return std::span(bytes).subspan(offset, length);
  }

  void on_bulk(uint64_t lane, uint64_t offset, uint64_t length, bool last) override
      EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back("bulk " + std::to_string(lane) + " " + std::to_string(offset) + " " +
                      std::to_string(length) + (last ? " last" : ""));
    changed_.notify_all();
  }

  void on_progress() override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++progress_;
    changed_.notify_all();
  }

  void on_end(std::exception_ptr cause) noexcept override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    cause_ = std::move(cause);
    ++ends_;
    changed_.notify_all();
  }

  // "" after a clean end, the exception's text after another, "(still open)" when it did not come.
  std::string wait_for_end() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto deadline = CondVar::Clock::now() + kPatience;
    while (ends_ == 0 && CondVar::Clock::now() < deadline)
      changed_.wait_until(mutex_, deadline);
    if (ends_ == 0)
      return "(still open)";
    return describe(cause_);
  }

  // All events so far, when there are at least that many.
  std::vector<std::string> wait_for_events(size_t count) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto deadline = CondVar::Clock::now() + kPatience;
    while (events_.size() < count && CondVar::Clock::now() < deadline)
      changed_.wait_until(mutex_, deadline);
    return events_;
  }

  // True when the condition came true; it is asked again whenever something happened.
  template <typename Condition>
  bool wait_until(Condition condition) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto deadline = CondVar::Clock::now() + kPatience;
    while (!condition() && CondVar::Clock::now() < deadline)
      changed_.wait_until(mutex_, deadline);
    return condition();
  }

  Bytes lane(uint64_t number) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return lanes_[number];
  }

  uint64_t last_sequence() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return last_sequence_;
  }

  int ends() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return ends_;
  }

  int takes() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return takes_;
  }

 private:
  static std::string describe(const std::exception_ptr& cause) {
    if (!cause)
      return "";
    try {
      std::rethrow_exception(cause);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<Bytes, uint32_t>> outbox_ GUARDED_BY(mutex_);
  bool took_all_ GUARDED_BY(mutex_) = true;
  std::vector<std::string> events_ GUARDED_BY(mutex_);
  std::map<uint64_t, Bytes> lanes_ GUARDED_BY(mutex_);
  uint64_t last_sequence_ GUARDED_BY(mutex_) = 0;
  int takes_ GUARDED_BY(mutex_) = 0;
  int progress_ GUARDED_BY(mutex_) = 0;
  int ends_ GUARDED_BY(mutex_) = 0;
  std::exception_ptr cause_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::transport
