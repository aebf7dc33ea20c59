#include "server/session/serve.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <thread>

#include <unistd.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "base/error.h"
#include "base/log.h"
#include "base/networks.h"
#include "base/platform.h"
#include "base/units.h"
#include "server/device/devices.h"
#include "server/executor/call_log.h"
#include "server/groups/collectives.h"
#include "server/operators/generator_copy.h"
#include "server/operators/libraries.h"
#include "server/operators/operators.h"
#include "server/session/connect_guard.h"
#include "server/session/end_watch.h"
#include "server/session/handshake.h"
#include "server/session/lifetime.h"
#include "server/session/memory_limit.h"
#include "server/session/resume.h"
#include "server/session/session.h"

namespace torch_remote::server {
namespace {

// How long a client that cannot resume may be silent, keepalive answers included.
constexpr std::chrono::milliseconds kClientSilence = std::chrono::minutes(10);

// On the connection's reader thread, which has nothing else to do any more. Starts no thread: the
// client may have used up what the process may have.
[[noreturn]] void leave_after_grace() {
  std::this_thread::sleep_for(kGrace);
  log(LogLevel::kInfo, "session ended during a call", {{"cause", "the client is gone"}});
  leave(SessionExit::kClosed);
}

wire::Welcome make_welcome(const Greeting& greeting, const Identity& identity,
                           std::chrono::milliseconds lease, const Devices& devices,
                           const OperatorTable& table, uint64_t max_memory) {
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
  // So a client knows without asking when its tensors may not fit.
  for (wire::DeviceProperties& device : welcome.devices)
    device.total_memory = std::min(device.total_memory, max_memory);
  return welcome;
}

SessionPage::Facts facts_of(const std::string& peer, const Devices& devices,
                            const Sandbox& sandbox) {
  const std::vector<wire::DeviceProperties> properties = devices.properties();
  return {peer,
          properties.at(0).name,
          sandbox.describe(),
          properties.size(),
          properties.at(0).total_memory,
          static_cast<uint64_t>(::time(nullptr))};
}

// Of libraries, and our own.
std::vector<c10::OperatorName> find_operators(const ServeOptions& options) {
  std::vector<c10::OperatorName> operators = register_collectives();
  operators.push_back(register_generator_copy());
  for (c10::OperatorName& name : load_libraries(options.libraries))
    operators.push_back(std::move(name));
  return operators;
}

// Sends the client the error when a session cannot begin because of the server's options.
template <typename Make>
void tell_if_refused(transport::Stream& stream, Make&& make) {
  try {
    make();
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

uint64_t capabilities_of(const ServeOptions& options, const SessionSetup& setup) {
  return wire::kCapabilities | (options.has_peers ? wire::kPeersCapability : 0) |
         (setup.cache == nullptr ? 0 : wire::kUploadCacheCapability) |
         (options.files.empty() ? 0 : wire::kFilesCapability);
}

std::shared_ptr<const SharedFolders> open_folders(const ServeOptions& options) {
  if (options.files.empty())
    return nullptr;
  return std::make_shared<const SharedFolders>(options.files);
}

Networks networks_of(const ServeOptions& options) {
  return options.peer_networks.empty() ? Networks::of_this_machine()
                                       : Networks::parse("--peers", options.peer_networks);
}

std::optional<PeerOptions> peers_of(const ServeOptions& options, std::string host) {
  if (!options.has_peers)
    return std::nullopt;
  return PeerOptions{std::move(host), options.keepalive, networks_of(options)};
}

SessionExit serve(std::unique_ptr<transport::Stream> stream, const ServeOptions& options,
                  const std::optional<wire::Preamble>& preamble, SessionSetup setup) {
  const Identity identity{wire::session_id(setup.route), setup.credentials.secret,
                          setup.credentials.resume_key, options.tls};
  const std::string& id = identity.id;
  if (options.listener == 0)  // else the listener puts it before each line
    set_log_name(id);
  const auto lease = setup.control ? options.lease : std::chrono::milliseconds(0);
  const Greeting greeting =
      greet(*stream, preamble, setup.credentials.make_proofs, capabilities_of(options, setup));
  setup.credentials.make_proofs = {};  // with the token, where it was here
  SessionPage& page = setup.page == nullptr ? SessionPage::make_private() : *setup.page;
  page.mark_begun();
  // Never destroyed, like the session and the threads that use them.
  auto& use = *new Use{Activity(setup.server_start), page};
  use.note();
  if (setup.prepared == nullptr) {
    tell_if_refused(*stream, [&] {
      setup.call_log = CallLog::make_file(options.call_log, id);
      setup.prepared = std::make_unique<const Prepared>(options);
    });
  }
  const Prepared& prepared = *setup.prepared.release();
  const Devices& devices = prepared.devices;
  const Sandbox& sandbox = prepared.sandbox;
  auto& call_log = *new CallLog(page, std::move(setup.call_log));
  const auto peers = peers_of(options, setup.host);
  if (peers)
    limit_connections(peers->networks);
  auto& session_begun = *new std::atomic<Session*>(nullptr);
  watch_for_end({options.parent_pid, options.parent_pid == 0 ? greeting.process : 0, options.limits,
                 options.listener},
                use, session_begun);
  page.note_facts(facts_of(stream->peer(), devices, sandbox));
  log(LogLevel::kInfo, "session begins",
      {{"peer", stream->peer()},
       {"client_torch", greeting.torch_version},
       {"devices", devices.count()},
       {"sandbox", sandbox.describe()}});
  send_welcome(*stream, make_welcome(greeting, identity, lease, devices, prepared.table,
                                     options.max_memory));
  const auto on_work = [&use](bool begins) {
    use.is_busy = begins;
    use.note();
  };
  const std::string peer = stream->peer();
  auto& session = *new Session(std::move(stream), devices, prepared.table,
                               {on_work, leave_after_grace, &call_log, &page, lease,
                                options.max_memory, peers, setup.cache.release(), prepared.files,
                                (greeting.capabilities & wire::kShortageCapability) != 0,
                                (greeting.capabilities & wire::kWarningsCapability) != 0},
                               connection_options(options, lease));
  session_begun = &session;
  if (lease.count() > 0)
    take_returning_clients(std::move(setup.control), session, identity, peer);
  return session.run() ? SessionExit::kClosed : SessionExit::kFailed;
}

}  // namespace

uint64_t new_session_route() {
  uint32_t route = 0;
  random_bytes(std::as_writable_bytes(std::span(&route, 1)));
  return route;
}

Credentials new_credentials(std::string token) {
  Credentials credentials;
  random_bytes(credentials.secret);
  credentials.resume_key = wire::resume_key_without_token(credentials.secret, token);
  credentials.make_proofs = proofs_with(std::move(token));
  return credentials;
}

Prepared::Prepared(const ServeOptions& options)
    : table(find_operators(options), options.schemas),
      files(open_folders(options)),
      sandbox(confine_files(options.sandbox, needs_of(options))),
      devices(Devices::choose(options.device, options.simulated_devices)) {
  if (options.device == "auto" && !devices.is_cuda() && sandbox.mode != SandboxMode::kOff &&
      has_gpu() && !hides_every_gpu(std::getenv("CUDA_VISIBLE_DEVICES")) &&
      c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA))
    log(LogLevel::kWarning, "the GPU cannot be used; try --sandbox off");
  if (options.max_memory != UINT64_MAX && !devices.is_cuda())
    limit_memory(options.max_memory);
  confine_calls(sandbox, needs_of(options), devices.is_cuda());
}

void serve_session(std::unique_ptr<transport::Stream> stream, const ServeOptions& options,
                   const std::optional<wire::Preamble>& preamble, SessionSetup setup) {
  const std::string peer = stream->peer();
  SessionPage* const page = setup.page;
  hold_sigterm();
  SessionExit code = SessionExit::kFailed;
  try {
    code = serve(std::move(stream), options, preamble, std::move(setup));
  } catch (const std::exception& error) {
    if (options.listener != 0 && page != nullptr && !page->has_begun())
      page->note_end(error.what());  // the listener limits the lines that strangers can cause
    else
      log(LogLevel::kError, "a session could not begin",
          {{"peer", peer}, {"reason", error.what()}});
  }
  leave(code);
}

}  // namespace torch_remote::server
