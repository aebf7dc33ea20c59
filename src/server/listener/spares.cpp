#include "server/listener/spares.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include <sys/socket.h>
#include <sys/wait.h>

#include "base/platform.h"
#include "server/session/handover.h"

namespace torch_remote::server {
namespace {

// A session that does not take the clients that resume must not keep many of their descriptors on
// their way: the kernel limits these for each user. Some ten messages fit.
void limit_unread_clients(const Fd& control) {
  const int bytes = 4096;
  ::setsockopt(control.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

// Of what the user or the machine has, which comes back when others give it back.
bool is_shortage(int error) {
  return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
}

}  // namespace

size_t Spares::starting() const {
  return static_cast<size_t>(
      std::ranges::count_if(spares_, [](const Spare& spare) { return !spare.is_ready; }));
}

bool Spares::has_ready() const {
  return starting() < spares_.size();
}

void Spares::start_missing(size_t waiting_clients) {
  const bool may_prepare = Clock::now() >= retry_at_;
  const size_t wanted = waiting_clients + (may_prepare ? 1 : 0);
  const size_t failures = failures_.size();
  while (spares_.size() < wanted && starting() < kMaxStarting && failures_.size() == failures &&
         Clock::now() >= short_until_)
    start();
}

void Spares::start() {
  try {
    auto [ours, theirs] = message_pair();
    limit_unread_clients(ours);
    SessionLogs::Pipe log = SessionLogs::make_pipe();
    std::vector<Fd> inherited;
    inherited.push_back(std::move(theirs));
    inherited.push_back(SessionPage::make_memory());
    SessionPage::View page = SessionPage::view(inherited.back());
    const Child child = spawn_session(program_.path, program_.arguments, session_environment(),
                                      std::move(inherited), log.writer);
    logs_.add(child.pid, std::move(log.reader), log_name(child.pid));
    spares_.push_back(
        {{child.pid, std::move(ours), std::move(page)}, Clock::now() + kStartTime, false, {}});
  } catch (const std::system_error& error) {
    if (has_been_ready_ && is_shortage(error.code().value()))
      note_shortage(error.what());
    else
      note_failure(error.what());
  }
}

void Spares::note_shortage(const std::string& reason) {
  log_.write(LogLevel::kError, "cannot start a process for a session now; new clients wait",
             {{"reason", reason}});
  short_until_ = Clock::now() + kShortageTime;
}

void Spares::note_failure(const std::string& reason) {
  log_.write(LogLevel::kError, "cannot start a process for a session", {{"reason", reason}});
  failures_.push_back(reason);
  retry_at_ = Clock::now() + kRetryTime;
}

void Spares::add_polled(std::vector<pollfd>& polled) const {
  for (const Spare& spare : spares_)
    if (!spare.is_ready && spare.failure.empty())
      polled.push_back({spare.process.control.get(), POLLIN, 0});
}

void Spares::read_reports() {
  for (Spare& spare : spares_) {
    if (spare.is_ready || !spare.failure.empty())
      continue;
    Report report = read_report(spare.process.control);
    spare.is_ready = report.kind == Report::Kind::kReady;
    has_been_ready_ = has_been_ready_ || spare.is_ready;
    if (report.kind == Report::Kind::kFailed)
      spare.failure = std::move(report.reason);
    else if (!spare.is_ready && Clock::now() >= spare.deadline)
      spare.failure = "it was not ready within " + std::to_string(kStartTime.count()) + " s";
    if (!spare.failure.empty())
      ::kill(spare.process.pid, SIGKILL);
  }
}

std::optional<SessionProcess> Spares::take() {
  const auto ready = std::ranges::find(spares_, true, &Spare::is_ready);
  if (ready == spares_.end())
    return std::nullopt;
  SessionProcess taken = std::move(ready->process);
  spares_.erase(ready);
  return taken;
}

void Spares::give_back(SessionProcess process) {
  spares_.push_front({std::move(process), {}, true, {}});
}

bool Spares::remove(pid_t pid, int status) {
  const auto found =
      std::ranges::find(spares_, pid, [](const Spare& spare) { return spare.process.pid; });
  if (found == spares_.end())
    return false;
  const std::string kill = describe_kill(status);
  const std::string end =
      kill.empty() ? "exited with status " + std::to_string(WEXITSTATUS(status)) : "was " + kill;
  if (found->is_ready) {  // no client waits for this one: the next gets another
    log_.write(LogLevel::kError, "the process that was ready for the next session has ended",
               {{"how", end}});
    retry_at_ = Clock::now() + kRetryTime;
  } else {
    const Report report = read_report(found->process.control);
    const std::string& told = found->failure.empty() ? report.reason : found->failure;
    note_failure(told.empty() ? "its process " + end : told);
  }
  spares_.erase(found);
  return true;
}

std::optional<std::string> Spares::take_failure() {
  if (failures_.empty())
    return std::nullopt;
  std::string oldest = std::move(failures_.front());
  failures_.pop_front();
  return oldest;
}

std::string Spares::log_name(pid_t pid) {
  return "spare " + std::to_string(pid);
}

std::vector<pid_t> Spares::processes() const {
  std::vector<pid_t> pids;
  for (const Spare& spare : spares_)
    pids.push_back(spare.process.pid);
  return pids;
}

void Spares::forget() {
  spares_.clear();
}

}  // namespace torch_remote::server
