#include "server/session/serve.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <system_error>
#include <thread>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/duration.h"
#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/executor/call_log.h"
#include "server/executor/devices.h"
#include "server/executor/libraries.h"
#include "server/executor/operators.h"
#include "server/session/handshake.h"
#include "server/session/resume.h"
#include "server/session/session.h"

namespace torch_remote::server {
namespace {

// How long a client that cannot resume may be silent, keepalive answers included.
constexpr std::chrono::milliseconds kClientSilence = std::chrono::minutes(10);

// How long a session may finish its work after its client has gone.
constexpr std::chrono::milliseconds kGrace{500};

[[noreturn]] void leave(SessionExit code) {
  std::fflush(nullptr);
  ::_exit(static_cast<int>(code));
}

// False: the process cannot be watched.
bool wait_for_process(int pid) {
  try {
    const Fd process = watch_parent(pid);
    pollfd polled{process.get(), POLLIN, 0};
    while (::poll(&polled, 1, -1) <= 0) {
    }
    return true;
  } catch (const std::system_error& error) {
    return error.code().value() == ESRCH;  // it had ended before
  }
}

// These threads are never joined: each ends the process, or runs until it ends.
void leave_with_parent(int pid) {
  std::thread([pid] {
    name_this_thread("tr-parent");
    wait_for_process(pid);
    leave(SessionExit::kClosed);
  }).detach();
}

// A killed client sends nothing, and processes that it forked may keep its socket open.
void leave_after_client(pid_t pid) {
  std::thread([pid] {
    name_this_thread("tr-client");
    if (!wait_for_process(pid))
      return;
    std::this_thread::sleep_for(kGrace);
    log(LogLevel::kWarning, "session ended", {{"cause", "the client's process has ended"}});
    leave(SessionExit::kClosed);
  }).detach();
}

// On SIGTERM the client is told. `session` is null until it exists.
void leave_on_sigterm(const std::atomic<Session*>& session) {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminate, nullptr);  // in all threads started from now on
  std::thread([&session, terminate] {
    name_this_thread("tr-signal");
    int number = 0;
    while (sigwait(&terminate, &number) != 0) {
    }
    if (Session* const begun = session.load())
      begun->stop("the server was stopped", kGrace);
    leave(SessionExit::kClosed);
  }).detach();
}

// A running operator counts as activity, so that a long one does not trip the idle timeout.
void watch_lifetime(const ServeOptions& options, Activity& activity,
                    std::shared_ptr<const std::atomic<bool>> is_busy) {
  if (options.limits.idle.count() == 0 && options.limits.age.count() == 0)
    return;
  std::thread([limits = options.limits, listener = options.listener, &activity,
               is_busy = std::move(is_busy)] {
    name_this_thread("tr-lifetime");
    while (true) {
      std::this_thread::sleep_for(Activity::kInterval);
      if (*is_busy)
        activity.touch();
      const auto reason = activity.reason_to_end(limits);
      if (!reason || (listener != 0 && ::getppid() == listener))
        continue;
      log(LogLevel::kWarning, "the server ends", {{"reason", *reason}});
      leave(SessionExit::kClosed);
    }
  }).detach();
}

void leave_soon() {
  std::thread([] {
    name_this_thread("tr-end");
    std::this_thread::sleep_for(kGrace);
    log(LogLevel::kInfo, "session ended during a call", {{"cause", "the client is gone"}});
    leave(SessionExit::kClosed);
  }).detach();
}

wire::Welcome make_welcome(const Greeting& greeting, const Identity& identity,
                           std::chrono::milliseconds lease, const Devices& devices,
                           const OperatorTable& table) {
  wire::Welcome welcome;
  welcome.version = greeting.version;
  welcome.session = identity.id;
  welcome.secret = identity.secret;
  welcome.lease = static_cast<uint64_t>(lease.count());
  welcome.host = hostname();
  welcome.pid = static_cast<uint64_t>(::getpid());
  welcome.torch_version = table.torch_version();
  describe_libraries(welcome);
  welcome.operators = table.digest();
  welcome.devices = devices.properties();
  return welcome;
}

SessionPage::Facts facts_of(const std::string& peer, const Devices& devices) {
  const std::vector<wire::DeviceProperties> properties = devices.properties();
  return {peer, properties.at(0).name, properties.size(), properties.at(0).total_memory,
          static_cast<uint64_t>(::time(nullptr))};
}

// Sends the client the error when a session cannot begin because of the server's options.
template <typename Make>
auto tell_if_refused(transport::Stream& stream, Make&& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    send_refusal(stream, error.what());
    throw;
  }
}

// A client that was stopped (Ctrl-Z, a debugger, a closed laptop) may resume. A client that started
// this server is watched instead.
transport::Connection::Options connection_options(const ServeOptions& options,
                                                  std::chrono::milliseconds lease) {
  transport::Connection::Options connection;
  connection.is_resumable = lease.count() > 0;
  if (options.parent_pid != 0)
    connection.keepalive = std::chrono::milliseconds(0);
  else if (!connection.is_resumable)
    connection.keepalive = kClientSilence;
  else
    connection.keepalive = options.keepalive;
  return connection;
}

SessionExit serve(std::unique_ptr<transport::Stream> stream, const ServeOptions& options,
                  const std::optional<wire::Preamble>& preamble, Activity& activity,
                  SessionPlace place, std::atomic<Session*>& begun) {
  Identity identity{wire::session_id(place.route), {}, options.token, options.tls};
  random_bytes(identity.secret);
  const std::string& id = identity.id;
  set_log_name(id);
  const auto lease = place.control ? options.lease : std::chrono::milliseconds(0);
  const Greeting greeting = greet(*stream, preamble, options.token);
  activity.touch();
  if (place.page != nullptr)
    place.page->mark_begun();
  const OperatorTable table = tell_if_refused(
      *stream, [&] { return OperatorTable(load_libraries(options.libraries), options.schemas); });
  const Devices devices = tell_if_refused(
      *stream, [&] { return Devices::choose(options.device, options.simulated_devices); });
  SessionPage& page =
      place.page == nullptr ? SessionPage::make_shared_with_children() : *place.page;
  // Never destroyed, like the session that writes to it.
  auto& call_log = *tell_if_refused(*stream, [&] {
                      return std::make_unique<CallLog>(page, options.call_log, id);
                    }).release();
  page.note_facts(facts_of(stream->peer(), devices));
  log(LogLevel::kInfo, "session begins",
      {{"peer", stream->peer()},
       {"client_torch", greeting.torch_version},
       {"devices", devices.count()}});
  send_welcome(*stream, make_welcome(greeting, identity, lease, devices, table));
  const auto is_busy = std::make_shared<std::atomic<bool>>(false);
  watch_lifetime(options, activity, is_busy);
  const auto on_work = [&activity, is_busy](bool begins) {
    *is_busy = begins;
    activity.touch();
  };
  if (greeting.process > 0 && options.parent_pid == 0)
    leave_after_client(greeting.process);
  const std::string peer = stream->peer();
  // Never destroyed: detached threads use it until the process ends.
  auto& session = *new Session(std::move(stream), devices, table,
                               {on_work, leave_soon, &call_log, &page, lease, options.max_memory},
                               connection_options(options, lease));
  begun = &session;
  if (lease.count() > 0)
    take_back_clients(std::move(place.control), session, identity, peer);
  return session.run() ? SessionExit::kClosed : SessionExit::kFailed;
}

}  // namespace

uint64_t new_session_route() {
  uint32_t route = 0;
  random_bytes(std::as_writable_bytes(std::span(&route, 1)));
  return route;
}

void serve_session(std::unique_ptr<transport::Stream> stream, const ServeOptions& options,
                   const std::optional<wire::Preamble>& preamble, Activity& activity,
                   SessionPlace place) {
  const std::string peer = stream->peer();
  auto& session = *new std::atomic<Session*>(nullptr);  // never destroyed
  leave_on_sigterm(session);                            // before other threads start
  SessionExit code = SessionExit::kFailed;
  try {
    if (options.parent_pid != 0)
      leave_with_parent(options.parent_pid);
    code = serve(std::move(stream), options, preamble, activity, std::move(place), session);
  } catch (const AuthenticationError& error) {
    log(LogLevel::kWarning, "a client was refused", {{"peer", peer}, {"reason", error.what()}});
    code = SessionExit::kNotAuthenticated;
  } catch (const std::exception& error) {
    log(LogLevel::kError, "a session could not begin", {{"peer", peer}, {"reason", error.what()}});
  }
  leave(code);
}

}  // namespace torch_remote::server
