#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "base/fd.h"

namespace torch_remote::server {

// Note [One log, one writer]
//
// Whoever holds the log can end it (shutdown() of a socket), read it (a pipe, by /proc/self/fd) and
// fill it. So the processes of a listener do not have it. Each has one end of a pipe of its own as
// standard output and error, and writes to it without waiting. The listener reads the other ends,
// and writes the log alone: the session's id, then the line, in which everything is escaped that a
// terminal would obey. What a process writes beyond its limits is counted and left out.

// How much one process may write to the log: so many lines and bytes at once, and so many more for
// each second since. A session that writes all the time fills 2 MiB in an hour. All sessions of one
// peer together may write kOfPeer times as much: a new session brings its peer no new allowance.
class LogAllowance {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr double kLines = 200;
  static constexpr double kBytes = 64 << 10;
  static constexpr double kLinesPerSecond = 2;
  static constexpr double kBytesPerSecond = 512;

  static constexpr double kOfPeer = 8;

  explicit LogAllowance(Clock::time_point now, double times = 1)
      : times_(times), lines_(times * kLines), bytes_(times * kBytes), counted_(now) {}

  // Whether a line of so many bytes may be written now.
  bool has_room(size_t bytes, Clock::time_point now);
  // It is.
  void note(size_t bytes);
  // Whether nothing would be lost by beginning anew.
  bool is_full(Clock::time_point now);

 private:
  void refill(Clock::time_point now);

  double times_;
  double lines_;
  double bytes_;
  Clock::time_point counted_;
};

// What the processes of a listener write to standard output and error, line by line. Confined to
// one thread; nothing here waits.
class SessionLogs {
 public:
  using Clock = LogAllowance::Clock;

  // A longer line is written as several.
  static constexpr size_t kMaxLine = 4096;
  // A process over its limit is read only this often. Meanwhile its pipe fills, and what it writes
  // beyond that is lost.
  static constexpr std::chrono::milliseconds kRest{250};
  // The cache's helper of a session may write so long after its session has ended.
  static constexpr std::chrono::seconds kAfterEnd{60};
  // How often it is said what was left out.
  static constexpr std::chrono::seconds kTellEvery{60};

  struct Pipe {
    Fd reader;
    Fd writer;  // for the process: writing to it never waits
  };

  // Throws std::system_error.
  static Pipe make_pipe();

  // Process `pid` writes to the other end. `name` comes before each of its lines.
  void add(pid_t pid, Fd reader, std::string name);
  // From now on it is this session of this peer, and nothing counts that it has written before.
  void begin_session(pid_t pid, const std::string& name, const std::string& peer);
  // It is no session any more, and has this name.
  void end_session(pid_t pid, const std::string& name);
  // The process has ended. Everything that it has written is read.
  void end(pid_t pid);
  // Of all processes.
  void end_all();

  // For a child of fork().
  void forget() { logs_.clear(); }

  // For poll().
  void add_polled(std::vector<pollfd>& polled);
  // Reads what there is. `polled` is of add_polled(), and poll() has filled it.
  void read(const std::vector<pollfd>& polled);

 private:
  struct Log {
    pid_t pid;  // -1: it has ended
    Fd reader;
    std::string name;
    LogAllowance allowance;
    std::shared_ptr<LogAllowance> of_peer{};  // null: it has no peer yet
    Clock::time_point rest_until{};           // not polled until then
    Clock::time_point tell_at{};              // when to say what was left out
    Clock::time_point forget_at = Clock::time_point::max();
    std::string partial{};  // of a line whose end has not come
    uint64_t left_out_lines = 0;
    uint64_t left_out_bytes = 0;
    size_t place = 0;  // among the polled; 0: not among them
  };

  Log* find(pid_t pid);
  void rename(pid_t pid, const std::string& name, std::shared_ptr<LogAllowance> of_peer);
  std::shared_ptr<LogAllowance> allowance_of(const std::string& peer);
  // False: there is nothing more to read, now or ever.
  bool read_some(Log& log);
  void read_rest(Log& log);
  void add_text(Log& log, std::string_view text);
  void write_line(Log& log, std::string_view line);
  static void leave_out(Log& log, std::string_view text);
  static void tell_left_out(Log& log);

  // Of peers that have a session, or had one and have not got their whole allowance back.
  std::map<std::string, std::shared_ptr<LogAllowance>> peers_;
  std::list<Log> logs_;
  std::vector<char> buffer_ = std::vector<char>(size_t{64} << 10);
};

}  // namespace torch_remote::server
