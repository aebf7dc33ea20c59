#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "base/fd.h"
#include "base/session_page.h"
#include "server/listener/limited_log.h"
#include "server/listener/session_logs.h"
#include "server/listener/session_program.h"

namespace torch_remote::server {

// A session's process: Note [Executed sessions] in server/session/handover.h.
struct SessionProcess {
  pid_t pid = -1;
  Fd control;
  SessionPage::View page;
};

// Processes without a client: those that load libtorch, and those that are ready. Confined to one
// thread; nothing here waits.
class Spares {
 public:
  using Clock = std::chrono::steady_clock;

  // Processes that load libtorch at the same time, however many clients wait.
  static constexpr size_t kMaxStarting = 4;
  // One that is not ready by then is killed.
  static constexpr std::chrono::seconds kStartTime{60};
  // Where a start failed and no client waits, the next one is tried so much later.
  static constexpr std::chrono::seconds kRetryTime{10};

  // `logs` gets what they write, and `log` what is said of them. Both outlive this.
  Spares(SessionProgram program, SessionLogs& logs, LimitedLog& log)
      : program_(std::move(program)), logs_(logs), log_(log) {}

  // Where a start failed for want of threads, memory or descriptors, clients wait so long for the
  // next one. A server's first process must start at once.
  static constexpr std::chrono::seconds kShortageTime{1};

  // Starts processes until there is one for each waiting client, and one more: the spare.
  void start_missing(size_t waiting_clients);
  // For poll(): the sockets of those that are starting.
  void add_polled(std::vector<pollfd>& polled) const;
  // Reads what they have reported.
  void read_reports();
  // One that is ready.
  std::optional<SessionProcess> take();
  // One that was taken and got no client: the next client gets it.
  void give_back(SessionProcess process);
  // Process `pid` ended with waitpid()'s `status`. False: it is none of these.
  bool remove(pid_t pid, int status);
  // Why a start failed, once for each; it has been logged.
  std::optional<std::string> take_failure();

  bool has_ready() const;
  std::vector<pid_t> processes() const;
  // What stands before the lines of one that has no client yet.
  static std::string log_name(pid_t pid);
  // Closes their sockets and pages; for a child of fork().
  void forget();

 private:
  struct Spare {
    SessionProcess process;
    Clock::time_point deadline;  // for being ready
    bool is_ready = false;
    std::string failure;  // why it failed; it is about to end
  };

  size_t starting() const;
  void start();
  void note_shortage(const std::string& reason);
  void note_failure(const std::string& reason);

  const SessionProgram program_;
  SessionLogs& logs_;
  LimitedLog& log_;
  std::deque<Spare> spares_;
  std::deque<std::string> failures_;
  bool has_been_ready_ = false;  // one of them
  Clock::time_point retry_at_{};
  Clock::time_point short_until_{};
};

}  // namespace torch_remote::server
