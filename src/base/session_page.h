#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace torch_remote {

// Counters and last calls of a session, in memory shared between the session's process and the one
// that started it, which can read them also after the session was killed. No other process maps it.
//
// One thread of the session writes. Readers do not trust the page, because a session that an
// attacker controls can write anything here: they limit every count and length, make text
// printable, and never read past the page.
class SessionPage {
 public:
  static constexpr size_t kCalls = 64;
  static constexpr size_t kNameBytes = 56;
  static constexpr size_t kReasonBytes = 300;
  static constexpr size_t kFactBytes = 120;
  // More different operators than these share the last row.
  static constexpr size_t kOperators = 256;

  struct Figures {
    uint64_t calls = 0;
    uint64_t failures = 0;
    uint64_t bytes_received = 0;
    uint64_t bytes_sent = 0;
    uint64_t memory = 0;  // bytes of tensors
    uint64_t storages = 0;
    uint64_t queued = 0;   // bytes of calls that wait
    uint64_t answers = 0;  // requests answered: for most of them the client waits
  };

  // What does not change while a session lasts.
  struct Facts {
    std::string peer;
    std::string device;   // name of the first device
    std::string sandbox;  // what the session says is in force
    uint64_t devices = 0;
    uint64_t device_memory = 0;  // bytes of the first device
    uint64_t started = 0;        // seconds since 1970
  };

  struct OperatorTime {
    std::string name;
    uint64_t calls = 0;
    uint64_t nanoseconds = 0;
  };

  struct Unmap {
    void operator()(const SessionPage* page) const noexcept;
  };

  // A page of another process, mapped for reading.
  using View = std::unique_ptr<const SessionPage, Unmap>;

  // Memory for view() and map(), whose size nobody can change. Throws std::system_error.
  static Fd make_memory();
  // Throws std::system_error, also when the memory is too small.
  static View view(const Fd& memory);
  // The same for the session itself, which writes to it. Never unmapped.
  static SessionPage& map(const Fd& memory);
  // A page that no other process reads. Never unmapped.
  static SessionPage& make_private();

  void note_call(uint64_t number, std::string_view name) noexcept {
    Call& call = calls_[number % kCalls];
    const size_t length = name.size() < kNameBytes ? name.size() : kNameBytes;
    name.copy(call.name.data(), length);
    call.length.store(static_cast<uint32_t>(length), std::memory_order_relaxed);
    last_.store(number, std::memory_order_release);
  }

  // Returns the row of an operator for note_time().
  size_t add_operator(std::string_view name) noexcept;

  void note_time(size_t row, uint64_t nanoseconds) noexcept {
    Operator& timed = operators_[row];
    add(timed.calls, 1);
    add(timed.nanoseconds, nanoseconds);
  }

  // Those that were called, in no order.
  std::vector<OperatorTime> operator_times() const;

  // Called at most once, when the session begins.
  void note_facts(const Facts& facts) noexcept;
  // All zero before note_facts().
  Facts facts() const;

  // Called once the client has proven who it is.
  void mark_begun() noexcept { has_begun_.store(1, std::memory_order_relaxed); }

  bool has_begun() const noexcept { return has_begun_.load(std::memory_order_relaxed) != 0; }

  // When the session was last used, in milliseconds of the steady clock; 0: not yet.
  void note_use(int64_t time) noexcept { last_use_.store(time, std::memory_order_relaxed); }

  int64_t last_use() const noexcept { return last_use_.load(std::memory_order_relaxed); }

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

  struct Operator {
    std::array<char, kNameBytes> name;
    std::atomic<uint64_t> length;
    std::atomic<uint64_t> calls;
    std::atomic<uint64_t> nanoseconds;
  };

  static constexpr size_t kFigures = sizeof(Figures) / sizeof(uint64_t);

  // There is one writer, so this needs no locked instruction.
  static void add(std::atomic<uint64_t>& sum, uint64_t more) noexcept {
    sum.store(sum.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }

  std::array<std::atomic<uint64_t>, kFigures> figures_;
  std::atomic<uint32_t> has_begun_;
  std::atomic<int64_t> last_use_;
  std::atomic<uint64_t> last_;  // number of the last call; the first is 1
  std::array<Call, kCalls> calls_;
  std::atomic<uint64_t> operator_count_;
  std::array<Operator, kOperators> operators_;
  std::array<char, kFactBytes> peer_;
  std::array<char, kFactBytes> device_;
  std::array<char, kFactBytes> sandbox_;
  std::array<std::atomic<uint64_t>, 6> facts_;  // lengths of the three texts, then the numbers
  std::array<char, kReasonBytes> reason_;
  std::atomic<uint32_t> reason_length_;
  std::atomic<uint32_t> has_reason_;
};

// For a waitpid() status: "killed by signal 9 (Killed)"; empty for a process that exited.
std::string describe_kill(int wait_status);
// "ended with exit status 255"; empty for status 0, and for a process that was killed.
std::string describe_failure(int wait_status);

}  // namespace torch_remote
