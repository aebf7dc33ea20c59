#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"

namespace torch_remote::server {

// The operators that a session has run, in order, for who runs the server: tests and debugging.
//
//   file := line*      line := "aten::add.Tensor" "\n"
//
// Names only: no values, no sizes. Clients can neither turn it on nor name the file. Confined to the
// executor thread.
class CallLog {
 public:
  // The file is `prefix`.`session`, readable by its owner alone. Throws std::system_error when it cannot be opened.
  CallLog(const std::string& prefix, const std::string& session);
  ~CallLog();

  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  void add(std::string_view name);
  // Before a client is told that its calls have run. A disk that is full ends the log, not the session.
  void flush() noexcept;

 private:
  const std::string path_;
  Fd file_;  // empty once writing has failed
  std::string pending_;
};

}  // namespace torch_remote::server
