#include "server/serve.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <thread>

#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/call_log.h"
#include "server/devices.h"
#include "server/handshake.h"
#include "server/libraries.h"
#include "server/operators.h"
#include "server/session.h"

namespace torch_remote::server {
namespace {

// How long a connected client may be silent, keepalive answers included, before its session ends.
constexpr std::chrono::milliseconds kClientSilence = std::chrono::minutes(10);

// How long a session may go on with what it was doing after its client has gone.
constexpr std::chrono::milliseconds kGrace{500};

[[noreturn]] void leave(SessionExit code) {
  std::fflush(nullptr);
  ::_exit(static_cast<int>(code));
}

std::string new_session_id() {
  std::array<std::byte, 4> bytes{};
  random_bytes(bytes);
  std::string id;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    id += kDigits[std::to_integer<unsigned>(byte) >> 4];
    id += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return id;
}

// Threads that outlive everything: each ends the process, or waits until it ends.
void leave_with_parent(int pid) {
  std::thread([pid] {
    name_this_thread("tr-parent");
    try {
      const Fd parent = watch_parent(pid);
      pollfd polled{parent.get(), POLLIN, 0};
      while (::poll(&polled, 1, -1) <= 0) {
      }
    } catch (const std::exception&) {
      // It had gone before we looked.
    }
    leave(SessionExit::kClosed);
  }).detach();
}

// An operator may take longer than a server may be idle: while one runs, it is used.
void watch_lifetime(const ServeOptions& options, Activity& activity,
                    std::shared_ptr<const std::atomic<bool>> is_busy) {
  if (options.limits.idle.count() == 0 && options.limits.age.count() == 0)
    return;
  std::thread([limits = options.limits, ends_itself = !options.has_listener, &activity,
               is_busy = std::move(is_busy)] {
    name_this_thread("tr-lifetime");
    while (true) {
      std::this_thread::sleep_for(Activity::kInterval);
      if (*is_busy)
        activity.touch();
      const auto reason = activity.reason_to_end(limits);
      if (!ends_itself || !reason)
        continue;
      log(LogLevel::kWarning, "the server ends itself", {{"reason", *reason}});
      leave(SessionExit::kClosed);
    }
  }).detach();
}

void leave_soon() {
  std::thread([] {
    name_this_thread("tr-end");
    std::this_thread::sleep_for(kGrace);
    log(LogLevel::kInfo, "session ended in the middle of its work",
        {{"cause", "the client is gone"}});
    leave(SessionExit::kClosed);
  }).detach();
}

wire::Welcome make_welcome(const Greeting& greeting, const std::string& id, const Devices& devices,
                           const OperatorTable& table) {
  wire::Welcome welcome;
  welcome.version = greeting.version;
  welcome.session = id;
  welcome.host = hostname();
  welcome.pid = static_cast<uint64_t>(::getpid());
  welcome.torch_version = table.torch_version();
  describe_libraries(welcome);
  welcome.operators = table.digest();
  welcome.devices = devices.properties();
  return welcome;
}

// What the server was started with and cannot have ends a session before it begins; the client is told.
template <typename Make>
auto tell_if_refused(transport::Stream& stream, Make&& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    send_refusal(stream, error.what());
    throw;
  }
}

std::unique_ptr<CallLog> open_call_log(transport::Stream& stream, const std::string& prefix,
                                       const std::string& session) {
  std::unique_ptr<CallLog> call_log;
  try {
    if (!prefix.empty())
      call_log = std::make_unique<CallLog>(prefix, session);
  } catch (const std::exception&) {
    send_refusal(stream, "the server cannot write its log of calls");
    throw;
  }
  return call_log;
}

SessionExit serve(std::unique_ptr<transport::Stream> stream, const ServeOptions& options,
                  const std::optional<wire::Preamble>& preamble, Activity& activity) {
  const std::string id = new_session_id();
  set_log_name(id);
  const Greeting greeting = greet(*stream, preamble, options.token);
  activity.touch();
  const OperatorTable table = tell_if_refused(
      *stream, [&] { return OperatorTable(load_libraries(options.libraries), options.schemas); });
  const Devices devices = tell_if_refused(
      *stream, [&] { return Devices::choose(options.device, options.simulated_devices); });
  const std::unique_ptr<CallLog> call_log = open_call_log(*stream, options.call_log, id);
  log(LogLevel::kInfo, "session begins",
      {{"peer", stream->peer()},
       {"client_torch", greeting.torch_version},
       {"devices", devices.count()}});
  send_welcome(*stream, make_welcome(greeting, id, devices, table));
  const auto is_busy = std::make_shared<std::atomic<bool>>(false);
  watch_lifetime(options, activity, is_busy);
  const auto on_work = [&activity, is_busy](bool begins) {
    *is_busy = begins;
    activity.touch();
  };
  transport::Connection::Options connection;
  // A client that was stopped (Ctrl-Z, a debugger, a closed laptop) may come back; one that started us is watched.
  connection.keepalive = options.parent_pid != 0 ? std::chrono::milliseconds(0) : kClientSilence;
  Session session(std::move(stream), devices, table, {on_work, leave_soon, call_log.get()},
                  connection);
  return session.run() ? SessionExit::kClosed : SessionExit::kFailed;
}

}  // namespace

void serve_session(std::unique_ptr<transport::Stream> stream, const ServeOptions& options,
                   const std::optional<wire::Preamble>& preamble, Activity& activity) {
  const std::string peer = stream->peer();
  SessionExit code = SessionExit::kFailed;
  try {
    if (options.parent_pid != 0)
      leave_with_parent(options.parent_pid);
    code = serve(std::move(stream), options, preamble, activity);
  } catch (const AuthenticationError& error) {
    log(LogLevel::kWarning, "a client was refused", {{"peer", peer}, {"reason", error.what()}});
    code = SessionExit::kNotAuthenticated;
  } catch (const std::exception& error) {
    log(LogLevel::kError, "a session could not begin", {{"peer", peer}, {"reason", error.what()}});
  }
  leave(code);
}

}  // namespace torch_remote::server
