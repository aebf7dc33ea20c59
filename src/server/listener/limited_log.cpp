#include "server/listener/limited_log.h"

namespace torch_remote::server {

void LimitedLog::write(LogLevel level, std::string_view event,
                       std::initializer_list<LogField> fields, std::string_view peer) {
  if (!log_enabled(level))
    return;
  tell_left_out();
  if (admit(event, peer, Clock::now()))
    log(level, event, fields);
}

void LimitedLog::tell_left_out(bool at_end) {
  for (const auto& [event, lines] : take_left_out(at_end ? Clock::time_point::max() : Clock::now()))
    log(LogLevel::kWarning, "lines were left out", {{"of", event}, {"lines", lines}});
}

bool LimitedLog::admit(std::string_view event, std::string_view peer, Clock::time_point now) {
  auto found = windows_.find(event);
  if (found == windows_.end())
    found = windows_.emplace(event, Window{now + kWindow}).first;
  Window& window = found->second;
  const auto of_peer = window.lines_of_peers.find(peer);
  const bool has_most = of_peer != window.lines_of_peers.end() && of_peer->second >= kMostLines;
  if (has_most || window.lines >= kMostOfAll) {
    ++window.left_out;
    return false;
  }
  ++window.lines;
  ++window.lines_of_peers[std::string(peer)];
  return true;
}

std::vector<std::pair<std::string, uint64_t>> LimitedLog::take_left_out(Clock::time_point now) {
  std::vector<std::pair<std::string, uint64_t>> left_out;
  std::erase_if(windows_, [&](const auto& entry) {
    const auto& [event, window] = entry;
    if (window.end > now)
      return false;
    if (window.left_out != 0)
      left_out.emplace_back(event, window.left_out);
    return true;
  });
  return left_out;
}

}  // namespace torch_remote::server
