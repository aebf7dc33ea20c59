#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/session_page.h"

namespace torch_remote::server {

// Throws std::invalid_argument if a session could not write `prefix`.SESSION. Leaves no file.
void try_call_log(const std::string& prefix);

// The operators that a session has run, in order, for whoever runs the server: the last ones in the
// session's page and, if wanted, all in a file (for tests and debugging).
//
//   file := line*      line := "aten::add.Tensor" "\n"
//
// Names only, no values or sizes. Clients can neither turn it on nor choose the file. Confined to
// the executor thread.
class CallLog {
 public:
  // `file` may be empty.
  CallLog(SessionPage& page, Fd file) : page_(page), file_(std::move(file)) {}

  ~CallLog();

  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  void add(uint64_t number, std::string_view name) {
    page_.note_call(number, name);
    if (file_)
      add_line(name);
  }

  // The row of an operator in the table of times, for CallTimer.
  size_t add_operator(std::string_view name) noexcept { return page_.add_operator(name); }

  void note_time(size_t row, std::chrono::nanoseconds time) noexcept {
    page_.note_time(row, static_cast<uint64_t>(time.count()));
  }

  // The file `prefix`.`session`, new and readable by its owner only; none if `prefix` is empty.
  // Throws std::runtime_error when it cannot be made.
  static Fd make_file(const std::string& prefix, const std::string& session);

  // Call before a client learns that its calls have run. A full disk only ends the log.
  void flush() noexcept;

 private:
  void add_line(std::string_view name);

  SessionPage& page_;
  Fd file_;  // empty once writing has failed
  uint64_t written_ = 0;
  std::string pending_;
};

// Measures a call of the operator of this row. On CUDA this is the time until the call is launched.
class CallTimer {
 public:
  CallTimer(CallLog* call_log, size_t row) : call_log_(call_log), row_(row) {}

  ~CallTimer() {
    if (call_log_ != nullptr)
      call_log_->note_time(row_, Clock::now() - begin_);
  }

  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  CallLog* const call_log_;  // null: nothing is measured
  const size_t row_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace torch_remote::server
