#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "base/session_page.h"

namespace torch_remote::server {

// How often operators ran, and for how long, by name. A session could invent any number of names,
// so those beyond a limit are counted together.
class OperatorTimes {
 public:
  static constexpr size_t kMaxNames = 4096;

  void add(const std::vector<SessionPage::OperatorTime>& times);
  // At most `count`, those that took longest first.
  std::vector<SessionPage::OperatorTime> longest(size_t count) const;

  size_t size() const { return by_name_.size(); }

 private:
  std::map<std::string, SessionPage::OperatorTime> by_name_;
};

// The listener's own counters.
struct ListenerFigures {
  uint64_t sessions_begun = 0;
  uint64_t sessions_killed = 0;  // by a signal
  uint64_t clients_refused = 0;  // wrong token, bad bytes, no room
  std::time_t started = std::time(nullptr);
  std::string sandbox;  // what sessions have on this kernel
  OperatorTimes operators_of_ended_sessions;
};

// One session, for describe_metrics().
struct SessionRow {
  std::string id;
  pid_t pid = 0;
  const SessionPage* page = nullptr;
};

// A line for each figure, for Prometheus: `torch_remote_calls_total{session="1a2b3c4d"} 812`.
std::string describe_metrics(const ListenerFigures& listener,
                             const std::vector<SessionRow>& sessions);

}  // namespace torch_remote::server
