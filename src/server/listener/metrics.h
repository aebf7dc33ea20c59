#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/session_page.h"

namespace torch_remote::server {

// What a listener counts itself.
struct ListenerFigures {
  uint64_t sessions_begun = 0;
  uint64_t sessions_killed = 0;  // by a signal
  uint64_t clients_refused = 0;  // wrong token, bad bytes, no room
};

// One line for each figure, as Prometheus reads them: `torch_remote_calls_total{session="1a2b3c4d"} 812`.
std::string describe_metrics(
    const ListenerFigures& listener,
    const std::vector<std::pair<std::string, SessionPage::Figures>>& sessions);

}  // namespace torch_remote::server
