#include "server/listener/sessions.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>
#include <tuple>

#include "base/log.h"
#include "base/peer_limits.h"
#include "base/platform.h"
#include "wire/handshake.h"

namespace torch_remote::server {
namespace {

// So many ended sessions are remembered, to tell clients that want to resume how theirs ended.
constexpr size_t kMostEnded = 64;
// Calls shown in an error for the user; the log has all calls of the page.
constexpr size_t kCallsForClient = 8;

}  // namespace

Sessions::New Sessions::prepare(std::string peer) {
  New session;
  session.peer = std::move(peer);
  session.place.route = new_route();
  std::tie(session.control, session.place.control) = message_pair();
  if (free_pages_.empty())
    free_pages_.push_back(&SessionPage::make_shared_with_children());
  session.place.page = free_pages_.back();
  free_pages_.pop_back();
  session.place.page->clear();
  return session;
}

uint64_t Sessions::new_route() const {
  uint64_t route = new_session_route();
  while (find(route) != nullptr)
    route = new_session_route();
  return route;
}

void Sessions::add(pid_t pid, New session) {
  sessions_.emplace(pid, Entry{session.place.route, std::move(session.control), session.place.page,
                               std::move(session.peer), ++figures_.sessions_begun});
}

void Sessions::discard(New session) {
  free_pages_.push_back(session.place.page);
}

std::string Sessions::remove(pid_t pid, int status) {
  const auto found = sessions_.find(pid);
  if (found == sessions_.end())
    return {};
  Entry& session = found->second;
  if (const std::string kill = describe_kill(status); !kill.empty() && !session.is_dropped) {
    ++figures_.sessions_killed;
    log(LogLevel::kError, "a session was killed",
        {{"session", wire::session_id(session.route)},
         {"pid", pid},
         {"how", kill},
         {"last_calls", session.page->last_calls()}});
    const std::string calls = session.page->last_calls(kCallsForClient);
    remember(session.route, "was " + kill + (calls.empty() ? "" : "; its last calls: " + calls));
  } else if (const std::string reason = session.page->end(); !reason.empty()) {
    remember(session.route, "has ended: " + reason);
  }
  figures_.operators_of_ended_sessions.add(session.page->operator_times());
  free_pages_.push_back(session.page);
  std::string peer = std::move(session.peer);
  sessions_.erase(found);
  return peer;
}

void Sessions::remember(uint64_t route, std::string end) {
  ended_.emplace_back(route, std::move(end));
  if (ended_.size() > kMostEnded)
    ended_.pop_front();
}

bool Sessions::evict_unproven_session() {
  std::map<uint64_t, pid_t> unproven;  // the oldest first
  for (const auto& [pid, session] : sessions_)
    if (!session.page->has_begun() && !session.is_dropped)
      unproven.emplace(session.number, pid);
  if (unproven.empty())
    return false;
  std::vector<std::string> peers;
  for (const auto& [number, pid] : unproven)
    peers.push_back(sessions_.at(pid).peer);
  const auto chosen = std::next(unproven.begin(), static_cast<ptrdiff_t>(oldest_of_busiest(peers)));
  ::kill(chosen->second, SIGKILL);
  sessions_.at(chosen->second).is_dropped = true;
  log(LogLevel::kWarning, "all sessions are taken; ending one whose client has not authenticated");
  return true;
}

void Sessions::forget() {
  sessions_.clear();
}

const Fd* Sessions::find(uint64_t route) const {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(),
                                  [&](const auto& entry) { return entry.second.route == route; });
  return found == sessions_.end() ? nullptr : &found->second.control;
}

std::string Sessions::describe_missing(uint64_t route) const {
  const std::string id = wire::session_id(route);
  const auto found = std::find_if(ended_.rbegin(), ended_.rend(),
                                  [&](const auto& entry) { return entry.first == route; });
  return found == ended_.rend() ? "this server no longer knows session " + id
                                : "session " + id + " " + found->second;
}

std::vector<pid_t> Sessions::processes() const {
  std::vector<pid_t> pids;
  for (const auto& [pid, session] : sessions_)
    pids.push_back(pid);
  return pids;
}

std::string Sessions::metrics() const {
  std::vector<SessionRow> all;
  for (const auto& [pid, session] : sessions_)
    all.push_back({wire::session_id(session.route), pid, session.page});
  return describe_metrics(figures_, all);
}

}  // namespace torch_remote::server
