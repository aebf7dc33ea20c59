#include "server/session/end_watch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/session/lifetime.h"

namespace torch_remote::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::sig_atomic_t kNoSignal = -1;

// Set by the handler of SIGTERM: an EndReason.
volatile std::sig_atomic_t asked_to_end = kNoSignal;

// The thread that watches. It takes SIGTERM inside ppoll() only.
pthread_t watching;

// What the listener has sent with the signal; anything else counts as kStopped.
EndReason reason_of(const siginfo_t& signal) {
  const int value = signal.si_code == SI_QUEUE ? signal.si_value.sival_int : 0;
  return value == static_cast<int>(EndReason::kIdle)  ? EndReason::kIdle
         : value == static_cast<int>(EndReason::kAge) ? EndReason::kAge
                                                      : EndReason::kStopped;
}

void handle_sigterm() {
  struct sigaction action {};

  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* signal, void*) {
    if (asked_to_end == kNoSignal)
      asked_to_end = static_cast<int>(reason_of(*signal));
    if (::pthread_equal(::pthread_self(), watching) == 0)  // a library's thread has taken it
      ::pthread_kill(watching, SIGTERM);
  };
  if (::sigaction(SIGTERM, &action, nullptr) != 0)
    throw_system_errno("sigaction", errno);
}

// SIGTERM is delivered only inside ppoll(), so that none is missed between a check and a wait.
sigset_t mask_of_wait() {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  sigdelset(&mask, SIGTERM);
  return mask;
}

class EndWatch {
 public:
  EndWatch(const EndCauses& causes, Use& use, const std::atomic<Session*>& session)
      : causes_(causes),
        use_(use),
        session_(session),
        has_limits_(causes.limits.idle.count() > 0 || causes.limits.age.count() > 0) {}

  [[noreturn]] void run() {
    watch_parent_process();
    watch_client();
    for (;;) {
      wait();
      if (asked_to_end != kNoSignal)
        tell_and_leave(describe_end(EndReason{asked_to_end}, causes_.limits));
      check_client();
      check_limits();
    }
  }

 private:
  void watch_parent_process() {
    if (causes_.parent == 0)
      return;
    try {
      parent_ = watch_parent(causes_.parent);
    } catch (const std::system_error&) {
      leave(SessionExit::kClosed);
    }
  }

  void watch_client() {
    if (causes_.client <= 0)
      return;
    try {
      client_ = watch_parent(causes_.client);
    } catch (const std::system_error& error) {
      if (error.code().value() == ESRCH)  // it had ended before
        leave_at_ = Clock::now() + kGrace;
    }
  }

  void wait() {
    std::array<pollfd, 2> polled{{{parent_.get(), POLLIN, 0}, {client_.get(), POLLIN, 0}}};
    const auto until = std::min(leave_at_, has_limits_ ? next_check_ : Clock::time_point::max());
    timespec left{};
    if (until != Clock::time_point::max()) {
      const auto time = std::max(until - Clock::now(), Clock::duration(0));
      const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
      left = {seconds.count(), std::chrono::nanoseconds(time - seconds).count()};
    }
    if (::ppoll(polled.data(), polled.size(), until == Clock::time_point::max() ? nullptr : &left,
                &mask_) <= 0)
      return;
    if (polled[0].revents != 0)
      leave(SessionExit::kClosed);
    if (polled[1].revents != 0) {
      client_.reset();
      leave_at_ = Clock::now() + kGrace;
    }
  }

  void check_client() const {
    if (Clock::now() < leave_at_)
      return;
    log(LogLevel::kWarning, "session ended", {{"cause", "the client's process has ended"}});
    leave(SessionExit::kClosed);
  }

  // A running operator counts as activity, so that a long one does not trip the idle timeout.
  void check_limits() {
    if (!has_limits_ || Clock::now() < next_check_)
      return;
    next_check_ = Clock::now() + Activity::kInterval;
    if (use_.is_busy)
      use_.note();
    const auto reason = use_.activity.reason_to_end(causes_.limits);
    if (!reason || (causes_.listener != 0 && ::getppid() == causes_.listener))
      return;
    const std::string why = describe_end(*reason, causes_.limits);
    log(LogLevel::kWarning, "the server ends", {{"reason", why}});
    tell_and_leave(why);
  }

  [[noreturn]] void tell_and_leave(const std::string& reason) const {
    if (Session* const begun = session_.load())
      begun->stop(reason, kGrace);
    leave(SessionExit::kClosed);
  }

  const EndCauses causes_;
  Use& use_;
  const std::atomic<Session*>& session_;
  const bool has_limits_;
  const sigset_t mask_ = mask_of_wait();
  Fd parent_;  // empty: not watched, as for the next
  Fd client_;
  Clock::time_point leave_at_ = Clock::time_point::max();  // the client's process has ended
  Clock::time_point next_check_ = Clock::now() + Activity::kInterval;
};

}  // namespace

void hold_sigterm() noexcept {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminate, nullptr);
}

void watch_for_end(const EndCauses& causes, Use& use, const std::atomic<Session*>& session) {
  std::thread([causes, &use, &session] {
    name_this_thread("tr-end-watch");
    watching = ::pthread_self();
    handle_sigterm();
    EndWatch(causes, use, session).run();
  }).detach();
}

}  // namespace torch_remote::server
