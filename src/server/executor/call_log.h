#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/session_page.h"

namespace torch_remote::server {

// Whether a session could write a file `prefix`.SESSION; std::invalid_argument says why not. Leaves nothing behind.
void try_call_log(const std::string& prefix);

// The operators that a session has run, in order, for who runs the server: the last few in the session's page, and all
// in a file where one is wanted (tests and debugging).
//
//   file := line*      line := "aten::add.Tensor" "\n"
//
// Names only: no values, no sizes. Clients can neither turn the file on nor name it. Confined to the executor thread.
class CallLog {
 public:
  // The file is `prefix`.`session`, new and readable by its owner alone; none when `prefix` is empty. Throws
  // std::runtime_error when it cannot be made.
  CallLog(SessionPage& page, const std::string& prefix, const std::string& session);
  ~CallLog();

  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  void add(uint64_t number, std::string_view name) {
    page_.note_call(number, name);
    if (file_)
      add_line(name);
  }

  // Before a client is told that its calls have run. A disk that is full ends the log, not the session.
  void flush() noexcept;

 private:
  void add_line(std::string_view name);

  SessionPage& page_;
  const std::string path_;
  Fd file_;  // empty once writing has failed
  uint64_t written_ = 0;
  std::string pending_;
};

}  // namespace torch_remote::server
