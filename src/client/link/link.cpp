#include "client/link/link.h"

#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "base/units.h"
#include "client/process/process.h"

namespace torch_remote::client {
namespace {

// How long a session that was stopped during its handshake waits for the server to hang up.
constexpr std::chrono::seconds kCloseTime{1};

std::chrono::milliseconds keepalive_limit() {
  return duration_from_environment("TORCH_REMOTE_KEEPALIVE",
                                   transport::Connection::Options().keepalive);
}

// How long a session tries to resume. 0: not at all.
std::chrono::milliseconds resume_patience() {
  return duration_from_environment("TORCH_REMOTE_PATIENCE", std::chrono::seconds(60));
}

// How long a server that listens may be silent in the first handshake. Tests set more: they run on
// busy machines.
std::chrono::seconds answer_limit() {
  return std::chrono::duration_cast<std::chrono::seconds>(
      duration_from_environment("TORCH_REMOTE_TEST_ANSWER_TIME", kAnswerTime));
}

std::string reason_of(const std::exception_ptr& cause) {
  return cause == nullptr ? "the server closed the session" : text_of(cause);
}

// The cause, after what is known of why the server has ended.
std::exception_ptr explained(std::exception_ptr cause, const std::string& why) {
  if (why.empty())
    return cause;
  return std::make_exception_ptr(ConnectionError(why + " (" + reason_of(cause) + ")"));
}

ErrorClass class_of(const std::exception_ptr& cause) {
  if (cause == nullptr)
    return ErrorClass::kSessionLost;
  try {
    std::rethrow_exception(cause);
  } catch (const ProtocolError&) {
    return ErrorClass::kProtocol;
  } catch (...) {
    return ErrorClass::kConnection;
  }
}

}  // namespace

Link::Link(Endpoint endpoint, Handler& handler)
    : handler_(handler),
      endpoint_(std::move(endpoint)),
      keepalive_(keepalive_limit()),
      patience_(resume_patience()),
      answer_time_(answer_limit()) {}

void Link::start() {
  std::thread([this] {
    open();
    MutexLock lock(mutex_);
    opener_ended_ = true;
    ended_.notify_all();
  }).detach();
}

void Link::open() {
  bool is_stopped = false;
  try {
    begin_worker_thread("tr-open");
    Reached reached = reach();
    welcome_ = std::move(reached.welcome);
    if (log_enabled(LogLevel::kInfo)) {
      log(LogLevel::kInfo, "connected",
          {{"url", endpoint_.url},
           {"host", welcome_.host},
           {"session", welcome_.session},
           {"torch", welcome_.torch_version}});
    }
    ticket_ = {welcome_.session, welcome_.secret, endpoint_.token};
    transport::Connection::Handler& handler = *this;
    connection_ = std::make_unique<transport::Connection>(std::move(reached.stream), handler,
                                                          connection_options(welcome_));
    connection_->start();
    MutexLock lock(mutex_);
    is_stopped = is_lost();
    open_.store(true, std::memory_order_release);
  } catch (const HandshakeCut&) {
    fail(explained_end(std::current_exception()));
    return clean_up();
  } catch (...) {
    fail(std::current_exception());
    return clean_up();
  }
  handler_.on_change();
  if (is_stopped) {  // stop() has found neither a stream to close nor a process to end
    if (endpoint_.redial)
      connection_->close(ending().cause, kCloseTime);
    else
      connection_->abort();
    return clean_up();
  }
  connection_->flush();
}

void Link::clean_up() {
  if (endpoint_.clean_up)
    endpoint_.clean_up();
}

std::string Link::state() const {
  if (was_stopped())
    return "stopped";
  if (is_lost())
    return "lost";
  if (is_resuming())
    return "resuming";
  return is_open() ? "open" : "connecting";
}

// --- the end

Link::Ending Link::ending() {
  MutexLock lock(mutex_);
  Ending ending = ending_;
  if (is_open())
    ending.session = welcome_.session;
  return ending;
}

void Link::end_with(ErrorClass kind, std::string cause) noexcept {
  {
    MutexLock lock(mutex_);
    if (!is_lost()) {
      ending_.cause = std::move(cause);
      ending_.kind = is_open() && kind != ErrorClass::kDeviceLost ? ErrorClass::kSessionLost : kind;
    }
    lost_.store(true, std::memory_order_release);
  }
  ended_.notify_all();
  handler_.on_change();
}

void Link::end_and_close(ErrorClass kind, std::string cause) {
  end_with(kind, cause);
  connection_->close(cause);
}

void Link::fail(std::exception_ptr cause) noexcept {
  end_with(class_of(cause), reason_of(cause));
}

void Link::stop(std::chrono::milliseconds patience, const std::string& reason) {
  WithoutGil without_gil;
  const bool was_lost = is_lost();
  if (!was_lost)
    stopped_.store(true, std::memory_order_relaxed);
  end_with(ErrorClass::kSessionLost, reason);  // first, because it is the cause of what follows
  if (!is_open() && endpoint_.redial)
    wait_for_opener(patience);
  if (is_open() && was_lost)
    connection_->abort();  // does nothing if it has ended
  else if (is_open())
    connection_->close(reason, patience);
  clean_up();
}

void Link::wait_for_opener(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  while (is_greeting_ && !opener_ended_ && std::chrono::steady_clock::now() < deadline)
    ended_.wait_until(mutex_, deadline);
}

bool Link::release() {
  constexpr std::chrono::seconds kPatience{1};
  return opener_ended_ && (!is_open() || connection_->release(kPatience));
}

void Link::abandon() noexcept {
  lost_.store(true, std::memory_order_release);
  if (is_open())
    connection_->abandon_in_forked_child();
}

// An examination that fails tells nothing: on_end() must not throw.
std::exception_ptr Link::explained_end(std::exception_ptr cause) noexcept {
  if (!endpoint_.post_mortem || is_lost())
    return cause;
  try {
    return explained(cause, endpoint_.post_mortem());
  } catch (const std::exception&) {
    return cause;
  }
}

// On the connection's reader thread.
void Link::on_end(std::exception_ptr cause) noexcept {
  const std::string reason = cause == nullptr ? connection_->peer_close_reason() : "";
  if (!reason.empty())
    cause = std::make_exception_ptr(ConnectionError("the server closed the session: " + reason));
  else if (cause != nullptr)
    cause = explained_end(std::move(cause));
  fail(std::move(cause));
}

}  // namespace torch_remote::client
