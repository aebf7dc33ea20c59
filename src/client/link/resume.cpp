// What a link does when its connection is lost, also during the first handshake: it dials again
// until TORCH_REMOTE_PATIENCE is over.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "client/link/link.h"
#include "client/process/process.h"

namespace torch_remote::client {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{50};
constexpr milliseconds kLongestPause{1500};
// Limits of one attempt, so that a stopped server or a silent network does not use up all patience.
// An attempt that needed all its time is followed by one with twice the time, for slow commands.
constexpr milliseconds kFirstAttempt{5000};
constexpr milliseconds kLongestAttempt{20000};
// So many hang-ups in a row, within some five seconds, mean that no server is behind the address.
constexpr int kMostHangUps = 8;
// Nothing is logged in the first second, so that a short cut gives one line: that it is over.
constexpr milliseconds kFirstLine{1000};
constexpr milliseconds kBetweenLines{5000};

milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

}  // namespace

// The first stream, and its handshake.
Link::Reached Link::reach() {
  const Clock::time_point begin = Clock::now();
  milliseconds pause = kFirstPause;
  int hang_ups = 0;
  for (std::unique_ptr<transport::Stream> stream = endpoint_.open();;
       stream = dial_again(begin, pause)) {
    std::string failure = "nothing listens there now";
    const bool is_connected = stream != nullptr;
    try {
      if (is_connected) {
        auto welcome = greet(*stream);
        return {std::move(stream), std::move(welcome)};
      }
    } catch (const HandshakeCut& cut) {
      if (!endpoint_.has_listener || patience_.count() == 0)
        throw;
      failure = cut.what();
    }
    hang_ups = is_connected ? hang_ups + 1 : 0;
    if (hang_ups == kMostHangUps) {
      throw ConnectionError("it hung up " + std::to_string(hang_ups) +
                            " times in a row during the first handshake; it may be no torch-remote "
                            "server, or a tunnel to nothing: " +
                            failure);
    }
    if (since(begin) >= patience_ || is_lost()) {
      throw ConnectionError("the first handshake was cut, and again in " +
                            std::to_string(patience_.count()) +
                            " ms (TORCH_REMOTE_PATIENCE): " + failure);
    }
  }
}

// The first handshake; none if the session was stopped meanwhile.
wire::Welcome Link::greet(transport::Stream& stream) {
  {
    MutexLock lock(mutex_);
    if (is_lost())
      throw ConnectionError("the session was stopped before its handshake");
    is_greeting_ = true;
  }
  try {
    return shake_hands(stream, endpoint_.token, endpoint_.has_listener ? answer_time_ : kStartTime);
  } catch (...) {
    MutexLock lock(mutex_);
    is_greeting_ = false;
    ended_.notify_all();
    throw;
  }
}

// After a pause, which grows. Null: nothing listens there now.
std::unique_ptr<transport::Stream> Link::dial_again(Clock::time_point begin, milliseconds& pause) {
  {
    MutexLock lock(mutex_);
    if (!is_lost())
      ended_.wait_for(mutex_, pause);
  }
  pause = std::min(pause * 2, kLongestPause);
  try {
    return endpoint_.redial(std::min(Clock::now() + kFirstAttempt, begin + patience_));
  } catch (const ConnectionError&) {
    return nullptr;
  }
}

transport::Connection::Options Link::connection_options(const wire::Welcome& welcome) {
  transport::Connection::Options options;
  options.keepalive = keepalive_;
  options.is_resumable = endpoint_.redial && welcome.lease > 0 && patience_.count() > 0;
  return options;
}

// Why the attempt failed, also if the answer was invalid; empty if it succeeded, or if the session
// is being stopped. Throws RefusedByServer, and ProtocolError if the server claims to have received
// what we did not send.
std::string Link::try_to_resume(uint64_t received, milliseconds time) {
  uint64_t theirs = 0;
  std::unique_ptr<transport::Stream> stream;
  try {
    stream = endpoint_.redial(Clock::now() + time);
    theirs = shake_hands_again(*stream, ticket_, welcome_.capabilities, received, time);
  } catch (const RefusedByServer&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
  connection_->resume(std::move(stream), theirs);
  return {};
}

// On the connection's reader thread. The user's threads submit until they run out of credit.
void Link::on_broken(std::exception_ptr cause, uint64_t received) {
  const Clock::time_point begin = Clock::now();
  const std::string why = text_of(cause);
  resuming_ = true;
  milliseconds next_line = kFirstLine;
  milliseconds pause = kFirstPause;
  milliseconds attempt = kFirstAttempt;
  while (!connection_->is_ending()) {
    if (is_lost() && !was_stopped())  // nobody needs the session any more
      throw ConnectionError(why);
    std::string failure;
    const milliseconds before = since(begin);
    try {
      failure = try_to_resume(received, std::min(attempt, patience_ - before));
    } catch (const std::exception& refused) {
      throw ConnectionError(why + "; it could not be resumed: " + refused.what());
    }
    if (failure.empty())
      break;
    if (since(begin) >= next_line) {
      log(LogLevel::kWarning, "connection lost; trying to resume",
          {{"session", ticket_.session},
           {"url", endpoint_.url},
           {"cause", why},
           {"last_attempt", failure},
           {"for_s", since(begin).count() / 1000},
           {"patience_s", patience_.count() / 1000}});
      next_line = since(begin) + kBetweenLines;
    }
    if (connection_->wait_while_broken(std::min(Clock::now() + pause, begin + patience_)))
      break;
    if (since(begin) >= patience_) {
      throw ConnectionError(why + "; it could not be resumed within TORCH_REMOTE_PATIENCE (" +
                            std::to_string(patience_.count()) + " ms): " + failure);
    }
    pause = std::min(pause * 2, kLongestPause);
    if (since(begin) - before >= attempt)
      attempt = std::min(attempt * 2, kLongestAttempt);
  }
  resuming_ = false;
  if (!connection_->is_ending()) {
    log(LogLevel::kWarning, "connection resumed",
        {{"session", ticket_.session},
         {"url", endpoint_.url},
         {"cause", why},
         {"after_ms", since(begin).count()}});
  }
}

}  // namespace torch_remote::client
