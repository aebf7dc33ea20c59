#include "server/listener/sessions.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>

#include <sys/socket.h>

#include "base/peer_limits.h"
#include "server/listener/excess.h"
#include "server/session/handover.h"
#include "server/session/lifetime.h"
#include "wire/handshake.h"

namespace torch_remote::server {
namespace {

// So many ended sessions are remembered, to tell clients that want to resume how theirs ended.
constexpr size_t kMostEnded = 64;
// Calls shown in an error for the user; the log has all calls of the page.
constexpr size_t kCallsForClient = 8;

}  // namespace

uint64_t Sessions::new_route() const {
  uint64_t route = new_session_route();
  while (find(route) != nullptr)
    route = new_session_route();
  return route;
}

void Sessions::add(SessionProcess process, uint64_t route, std::string peer, bool needs_proofs) {
  if (!needs_proofs)
    ::shutdown(process.control.get(), SHUT_RD);
  sessions_.emplace(process.pid, Entry{route, std::move(process.control), std::move(process.page),
                                       std::move(peer), ++figures_.sessions_begun, needs_proofs});
}

Sessions::Ended Sessions::remove(pid_t pid, int status) {
  const auto found = sessions_.find(pid);
  if (found == sessions_.end())
    return {};
  Entry& session = found->second;
  session.has_begun = session.has_begun || session.page->has_begun();
  Ended ended{session.peer, !session.has_begun && !session.is_dropped, {}};
  if (const std::string kill = describe_kill(status); !kill.empty() && !session.is_dropped) {
    ++figures_.sessions_killed;
    const std::string how =
        session.excess.empty() ? kill : "killed by its server, because " + session.excess;
    log_.write(LogLevel::kError, "a session was killed",
               {{"session", wire::session_id(session.route)},
                {"pid", pid},
                {"how", how},
                {"last_calls", session.page->last_calls()}},
               session.peer);
    const std::string calls = session.page->last_calls(kCallsForClient);
    remember(session.route, "was " + how + (calls.empty() ? "" : "; its last calls: " + calls));
  } else if (std::string reason = session.page->end(); !session.has_begun) {
    ended.reason = std::move(reason);
  } else if (!reason.empty()) {
    remember(session.route, "has ended: " + reason);
  }
  figures_.operators_of_ended_sessions.add(session.page->operator_times());
  last_use_of_ended_ = last_use();
  sessions_.erase(found);
  return ended;
}

std::vector<std::string> Sessions::note_begun() {
  std::vector<std::string> peers;
  for (auto& [pid, session] : sessions_) {
    if (session.has_begun || !session.page->has_begun())
      continue;
    session.has_begun = true;
    peers.push_back(session.peer);
  }
  return peers;
}

void Sessions::remember(uint64_t route, std::string end) {
  ended_.emplace_back(route, std::move(end));
  if (ended_.size() > kMostEnded)
    ended_.pop_front();
}

void Sessions::end_excessive() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_)
    return;
  next_look_ = now + kExcessInterval;
  for (auto& [pid, session] : sessions_) {
    if (session.excess.empty())
      session.excess = excess_of(pid);
    if (!session.excess.empty())
      ::kill(pid, SIGKILL);
  }
}

bool Sessions::evict_unproven_session() {
  std::map<uint64_t, pid_t> unproven;  // the oldest first
  for (const auto& [pid, session] : sessions_)
    if (!session.has_begun && !session.page->has_begun() && !session.is_dropped)
      unproven.emplace(session.number, pid);
  if (unproven.empty())
    return false;
  std::vector<std::string> peers;
  for (const auto& [number, pid] : unproven)
    peers.push_back(sessions_.at(pid).peer);
  const auto chosen = std::next(unproven.begin(), static_cast<ptrdiff_t>(oldest_of_busiest(peers)));
  ::kill(chosen->second, SIGKILL);
  sessions_.at(chosen->second).is_dropped = true;
  return true;
}

void Sessions::forget() {
  sessions_.clear();
}

void Sessions::add_polled(std::vector<pollfd>& polled) const {
  for (const auto& [pid, session] : sessions_)
    if (session.needs_proofs)
      polled.push_back({session.control.get(), POLLIN, 0});
}

void Sessions::answer_requests(const std::string& token) {
  for (auto& [pid, session] : sessions_)
    if (session.needs_proofs && answer_proof_request(session.control, token)) {
      session.needs_proofs = false;
      ::shutdown(session.control.get(), SHUT_RD);
    }
}

int64_t Sessions::last_use() const {
  int64_t last = last_use_of_ended_;
  for (const auto& [pid, session] : sessions_)
    last = std::max(last, std::min(session.page->last_use(), Activity::now()));
  return last;
}

size_t Sessions::unproven_of(const std::string& peer) const {
  return static_cast<size_t>(std::ranges::count_if(sessions_, [&](const auto& entry) {
    return entry.second.peer == peer && !entry.second.has_begun;
  }));
}

size_t Sessions::size_of(const std::string& peer) const {
  return static_cast<size_t>(std::ranges::count_if(
      sessions_, [&](const auto& entry) { return entry.second.peer == peer; }));
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
    all.push_back({wire::session_id(session.route), pid, session.page.get()});
  return describe_metrics(figures_, all);
}

}  // namespace torch_remote::server
