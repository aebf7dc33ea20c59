#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "transport/send_ledger.h"

namespace torch_remote::transport {

// What a connection counts. Thread-safe, without a lock: any thread may read it at any time.
class ConnectionFigures {
 public:
  using Clock = std::chrono::steady_clock;

  ConnectionFigures() { note_heard(); }

  // Before the write, so that the count is never below what the peer has received.
  void note_frame(size_t bytes) noexcept {
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    frames_sent_.fetch_add(1, std::memory_order_relaxed);
  }

  void note_received(size_t bytes) noexcept {
    bytes_received_.fetch_add(bytes, std::memory_order_relaxed);
    note_heard();
  }

  void note_heard() noexcept {
    last_heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

  // When the last bytes came, or the stream.
  Clock::time_point last_heard() const noexcept {
    return Clock::time_point(Clock::duration(last_heard_.load(std::memory_order_relaxed)));
  }

  // A copy of the ledger's totals.
  void publish(const SendLedger::Totals& totals) noexcept {
    bytes_in_flight_.store(totals.bytes, std::memory_order_relaxed);
    calls_in_flight_.store(totals.calls, std::memory_order_relaxed);
    last_applied_.store(totals.last_applied, std::memory_order_relaxed);
    calls_applied_.store(totals.calls_applied, std::memory_order_relaxed);
    calls_received_.store(totals.calls_received, std::memory_order_relaxed);
  }

  SendLedger::Totals in_flight() const noexcept {
    return {bytes_in_flight_.load(std::memory_order_relaxed),
            calls_in_flight_.load(std::memory_order_relaxed),
            last_applied_.load(std::memory_order_relaxed),
            calls_applied_.load(std::memory_order_relaxed),
            calls_received_.load(std::memory_order_relaxed)};
  }

  uint64_t bytes_sent() const noexcept { return bytes_sent_.load(std::memory_order_relaxed); }

  uint64_t bytes_received() const noexcept {
    return bytes_received_.load(std::memory_order_relaxed);
  }

  uint64_t frames_sent() const noexcept { return frames_sent_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Clock::rep> last_heard_ = 0;
  std::atomic<uint64_t> bytes_sent_ = 0;
  std::atomic<uint64_t> bytes_received_ = 0;
  std::atomic<uint64_t> frames_sent_ = 0;
  std::atomic<uint64_t> bytes_in_flight_ = 0;
  std::atomic<uint64_t> calls_in_flight_ = 0;
  std::atomic<uint64_t> last_applied_ = 0;
  std::atomic<uint64_t> calls_applied_ = 0;
  std::atomic<uint64_t> calls_received_ = 0;
};

}  // namespace torch_remote::transport
