#include "server/listener/session_logs.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/text.h"

namespace torch_remote::server {
namespace {

void make_nonblocking(const Fd& end) {
  if (::fcntl(end.get(), F_SETFL, ::fcntl(end.get(), F_GETFL) | O_NONBLOCK) != 0)
    throw_system_errno("fcntl", errno);
}

}  // namespace

void LogAllowance::refill(Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - counted_).count();
  counted_ = now;
  lines_ = std::min(times_ * kLines, lines_ + seconds * times_ * kLinesPerSecond);
  bytes_ = std::min(times_ * kBytes, bytes_ + seconds * times_ * kBytesPerSecond);
}

bool LogAllowance::has_room(size_t bytes, Clock::time_point now) {
  refill(now);
  return lines_ >= 1 && bytes_ >= static_cast<double>(bytes);
}

void LogAllowance::note(size_t bytes) {
  lines_ -= 1;
  bytes_ -= static_cast<double>(bytes);
}

bool LogAllowance::is_full(Clock::time_point now) {
  refill(now);
  return lines_ >= times_ * kLines && bytes_ >= times_ * kBytes;
}

SessionLogs::Pipe SessionLogs::make_pipe() {
  auto [reader, writer] = pipe_pair();
  make_nonblocking(reader);
  make_nonblocking(writer);
  return {std::move(reader), std::move(writer)};
}

void SessionLogs::add(pid_t pid, Fd reader, std::string name) {
  logs_.push_back({pid, std::move(reader), std::move(name), LogAllowance(Clock::now())});
}

SessionLogs::Log* SessionLogs::find(pid_t pid) {
  const auto found = std::ranges::find(logs_, pid, &Log::pid);
  return found == logs_.end() ? nullptr : &*found;
}

void SessionLogs::begin_session(pid_t pid, const std::string& name, const std::string& peer) {
  rename(pid, name, allowance_of(peer));
}

void SessionLogs::end_session(pid_t pid, const std::string& name) {
  rename(pid, name, nullptr);
}

std::shared_ptr<LogAllowance> SessionLogs::allowance_of(const std::string& peer) {
  const Clock::time_point now = Clock::now();
  std::erase_if(peers_, [&](const auto& entry) {
    return entry.second.use_count() == 1 && entry.second->is_full(now);
  });
  std::shared_ptr<LogAllowance>& found = peers_[peer];
  if (found == nullptr)
    found = std::make_shared<LogAllowance>(now, LogAllowance::kOfPeer);
  return found;
}

void SessionLogs::rename(pid_t pid, const std::string& name,
                         std::shared_ptr<LogAllowance> of_peer) {
  Log* const log = find(pid);
  if (log == nullptr)
    return;
  while (read_some(*log)) {
  }
  tell_left_out(*log);
  log->name = name;
  log->allowance = LogAllowance(Clock::now());
  log->of_peer = std::move(of_peer);
  log->rest_until = {};
}

void SessionLogs::end(pid_t pid) {
  if (Log* const log = find(pid)) {
    read_rest(*log);
    log->pid = -1;
    log->forget_at = Clock::now() + kAfterEnd;
  }
}

void SessionLogs::end_all() {
  for (Log& log : logs_)
    read_rest(log);
  logs_.clear();
}

void SessionLogs::add_polled(std::vector<pollfd>& polled) {
  const Clock::time_point now = Clock::now();
  for (Log& log : logs_) {
    log.place = log.rest_until > now ? 0 : polled.size();
    if (log.place != 0)
      polled.push_back({log.reader.get(), POLLIN, 0});
  }
}

void SessionLogs::read(const std::vector<pollfd>& polled) {
  const Clock::time_point now = Clock::now();
  for (auto log = logs_.begin(); log != logs_.end();) {
    const auto next = std::next(log);
    const size_t place = std::exchange(log->place, 0);
    if (place != 0 && polled[place].revents != 0)
      read_some(*log);
    if (log->left_out_lines != 0 && now >= log->tell_at)
      tell_left_out(*log);
    if (!log->reader || now >= log->forget_at) {
      read_rest(*log);
      logs_.erase(log);
    }
    log = next;
  }
}

bool SessionLogs::read_some(Log& log) {
  if (!log.reader)
    return false;
  const ssize_t got = ::read(log.reader.get(), buffer_.data(), buffer_.size());
  if (got < 0)
    return errno == EINTR;
  if (got == 0) {  // every process that had the other end has closed it
    log.reader.reset();
    return false;
  }
  add_text(log, {buffer_.data(), static_cast<size_t>(got)});
  return log.rest_until <= Clock::now();
}

// As much as a pipe holds: another process may be writing.
void SessionLogs::read_rest(Log& log) {
  constexpr int kMostReads = 16;
  log.rest_until = {};
  for (int i = 0; i < kMostReads && read_some(log); ++i)
    log.rest_until = {};
  if (!log.partial.empty())
    write_line(log, std::exchange(log.partial, {}));
  tell_left_out(log);
}

void SessionLogs::add_text(Log& log, std::string_view text) {
  while (!text.empty()) {
    if (log.rest_until > Clock::now())
      return leave_out(log, text);
    const size_t end = text.find('\n');
    const size_t length = std::min(end, text.size());
    const size_t taken = std::min(length, kMaxLine - log.partial.size());
    log.partial += text.substr(0, taken);
    const bool is_whole = taken == length && end != std::string_view::npos;
    text.remove_prefix(taken + (is_whole ? 1 : 0));
    if (is_whole || log.partial.size() == kMaxLine)
      write_line(log, std::exchange(log.partial, {}));
  }
}

void SessionLogs::write_line(Log& log, std::string_view line) {
  const Clock::time_point now = Clock::now();
  const std::string text = "[" + log.name + "] " + escaped(line);
  const size_t bytes = text.size() + 1;
  if (log.allowance.has_room(bytes, now) &&
      (log.of_peer == nullptr || log.of_peer->has_room(bytes, now))) {
    log.allowance.note(bytes);
    if (log.of_peer != nullptr)
      log.of_peer->note(bytes);
    if (!line.empty())
      pass_on_log_line(text);
    return;
  }
  if (log.left_out_lines++ == 0)
    log.tell_at = now + kTellEvery;
  log.left_out_bytes += line.size() + 1;
  log.rest_until = now + kRest;
}

// Of a process over its limit. Only looks for the ends of lines: it takes much longer to make a
// line than to write an empty one, and all sessions can write such lines at once.
void SessionLogs::leave_out(Log& log, std::string_view text) {
  const size_t rest = text.rfind('\n') + 1;  // 0 where there is none
  log.left_out_lines += static_cast<uint64_t>(std::ranges::count(text.substr(0, rest), '\n'));
  log.left_out_bytes += rest + (rest == 0 ? 0 : std::exchange(log.partial, {}).size());
  text.remove_prefix(rest);
  const size_t taken = std::min(text.size(), kMaxLine - log.partial.size());
  log.partial += text.substr(0, taken);
  log.left_out_bytes += text.size() - taken;
}

void SessionLogs::tell_left_out(Log& log) {
  const uint64_t lines = std::exchange(log.left_out_lines, 0);
  const uint64_t bytes = std::exchange(log.left_out_bytes, 0);
  if (lines != 0)
    torch_remote::log(LogLevel::kWarning, "lines of a session were left out",
                      {{"of", log.name}, {"lines", lines}, {"bytes", bytes}});
}

}  // namespace torch_remote::server
