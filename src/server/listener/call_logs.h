#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <sys/types.h>

#include "base/fd.h"
#include "server/listener/limited_log.h"

namespace torch_remote::server {

// The files of `serve --log-calls`, for all sessions of a listener. The listener makes them, so
// that no session needs the right to make a file, and limits what they have together: each session
// has an equal share of kMostBytes, and the kernel holds it to that. So idle sessions take nothing
// from the next one; files of ended sessions do, because files with a call are never removed. (On
// CUDA a session that was taken over can cut its own file to nothing; then it is removed.)
// Confined to one thread.
class CallLogs {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{4} << 30;
  static constexpr uint64_t kMostOfOne = uint64_t{1} << 30;
  // A session that would get less has no file.
  static constexpr uint64_t kLeastOfOne = uint64_t{1} << 20;
  // What a file costs although it is smaller.
  static constexpr uint64_t kLeastCost = uint64_t{64} << 10;

  // The files are `prefix`.SESSION; none where `prefix` is empty. `most_sessions`: at a time.
  // `log` outlives this.
  CallLogs(std::string prefix, size_t most_sessions, LimitedLog& log,
           uint64_t most_bytes = kMostBytes)
      : log_(log),
        prefix_(std::move(prefix)),
        share_(std::min(kMostOfOne, most_bytes / std::max<size_t>(most_sessions, 1))),
        left_(most_bytes) {}

  // A file for the session, whose process the kernel holds to the file's limit. Empty: there is
  // none, and the log says why.
  Fd begin(pid_t process, const std::string& session);
  // The session has ended, and its file has the size that it has.
  void end(pid_t process);

 private:
  struct File {
    std::string path;
    uint64_t reserved = 0;
  };

  LimitedLog& log_;
  const std::string prefix_;
  const uint64_t share_;
  uint64_t left_;
  std::map<pid_t, File> open_;
};

}  // namespace torch_remote::server
