#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/session_page.h"

namespace torch_remote::server {

// The listener's own counters.
struct ListenerFigures {
  uint64_t sessions_begun = 0;
  uint64_t sessions_killed = 0;  // by a signal
  uint64_t clients_refused = 0;  // wrong token, bad bytes, no room
};

// A line for each figure, for Prometheus: `torch_remote_calls_total{session="1a2b3c4d"} 812`.
std::string describe_metrics(
    const ListenerFigures& listener,
    const std::vector<std::pair<std::string, SessionPage::Figures>>& sessions);

}  // namespace torch_remote::server
