#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace torch_remote {

// Counters and last calls of a session, in memory shared between the session's process and the one
// that started it, which can read them also after the session was killed.
//
// One thread of the session writes. A reader may see a call's name half written, but never reads
// past the page.
class SessionPage {
 public:
  static constexpr size_t kCalls = 64;
  static constexpr size_t kNameBytes = 56;
  static constexpr size_t kReasonBytes = 300;

  struct Figures {
    uint64_t calls = 0;
    uint64_t failures = 0;
    uint64_t bytes_received = 0;
    uint64_t bytes_sent = 0;
    uint64_t memory = 0;  // bytes of tensors
    uint64_t storages = 0;
    uint64_t queued = 0;  // bytes of calls that wait
  };

  // Memory for map(). Throws std::system_error.
  static Fd make_memory();
  // Both throw std::system_error; map() also when the memory is too small. Never unmapped.
  static SessionPage& map(const Fd& memory);
  // Shared with the children that this process forks.
  static SessionPage& make_shared_with_children();

  // Called by the process that starts sessions, before a new one uses the page.
  void clear() noexcept;

  void note_call(uint64_t number, std::string_view name) noexcept {
    Call& call = calls_[number % kCalls];
    const size_t length = name.size() < kNameBytes ? name.size() : kNameBytes;
    name.copy(call.name.data(), length);
    call.length.store(static_cast<uint32_t>(length), std::memory_order_relaxed);
    last_.store(number, std::memory_order_release);
  }

  // Called once the client has proven who it is.
  void mark_begun() noexcept { has_begun_.store(1, std::memory_order_relaxed); }

  bool has_begun() const noexcept { return has_begun_.load(std::memory_order_relaxed) != 0; }

  // Why the session ends. Only the first reason is kept, cut to kReasonBytes. Any thread.
  void note_end(std::string_view reason) noexcept;
  // Empty where the session gave no reason.
  std::string end() const;

  void publish(const Figures& figures) noexcept;
  Figures figures() const noexcept;

  // At most `count`, oldest first: "call 812 aten::mm, call 813 aten::relu". Empty without calls.
  std::string last_calls(size_t count = kCalls) const;

 private:
  struct Call {
    std::array<char, kNameBytes> name;
    std::atomic<uint32_t> length;
  };

  static constexpr size_t kFigures = sizeof(Figures) / sizeof(uint64_t);

  std::array<std::atomic<uint64_t>, kFigures> figures_;
  std::atomic<uint32_t> has_begun_;
  std::atomic<uint64_t> last_;  // number of the last call; the first is 1
  std::array<Call, kCalls> calls_;
  std::array<char, kReasonBytes> reason_;
  std::atomic<uint32_t> reason_length_;
  std::atomic<uint32_t> has_reason_;
};

// For a waitpid() status: "killed by signal 9 (Killed)"; empty for a process that exited.
std::string describe_kill(int wait_status);

}  // namespace torch_remote
