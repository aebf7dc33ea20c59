#include <csignal>
#include <cstdlib>
#include <exception>
#include <optional>

#include <fcntl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/platform.h"
#include "server/session/end_watch.h"
#include "server/session/handover.h"
#include "server/session/lifetime.h"
#include "server/session/memory_limit.h"
#include "server/session/serve.h"
#include "transport/fd_stream.h"

namespace torch_remote::server {
namespace {

// Exits, when it fails, after telling the listener why.
std::unique_ptr<const Prepared> prepare_or_leave(const ServeOptions& options, const Fd& control) {
  try {
    auto prepared = std::make_unique<const Prepared>(options);
    tell_ready(control);
    return prepared;
  } catch (const std::exception& error) {
    try {
      tell_failure(control, error.what());
    } catch (const std::exception&) {
      // The listener is gone: nobody is left to tell.
    }
    ::_exit(static_cast<int>(SessionExit::kFailed));
  }
}

SessionPage& map_own_page() {
  const Fd memory(kPageDescriptor);
  return SessionPage::map(memory);
}

Credentials credentials_of(const Handover& told, const Fd& control) {
  Credentials credentials;
  credentials.secret = told.secret;
  credentials.resume_key.assign(told.resume_key.data(), told.resume_key_bytes);
  if (told.has_token != 0)
    credentials.make_proofs = proofs_by_listener(control.get());
  return credentials;
}

}  // namespace

void serve_executed(const ServeOptions& options) {
  name_this_thread("tr-starting");
  never_wait_for_log();
  ::signal(SIGINT, SIG_IGN);  // Ctrl-C ends the listener, which ends its sessions
  hold_sigterm();             // before a library starts threads
  SessionSetup setup;
  setup.control = Fd(kControlDescriptor);
  ::fcntl(setup.control.get(), F_SETFD, FD_CLOEXEC);
  setup.page = &map_own_page();
  std::optional<CacheSockets> cache;
  if (!options.cache.folder.empty())
    cache = start_cache_helper(options.cache);  // before a library starts threads
  end_first_without_memory();
  lower_descriptor_limit();    // not the helper's, which sends descriptors
  ::signal(SIGXFSZ, SIG_IGN);  // the file of calls may be full
  setup.prepared = prepare_or_leave(options, setup.control);
  name_this_thread("tr-spare");
  auto given = receive_client(setup.control);
  if (!given)
    ::_exit(static_cast<int>(SessionExit::kClosed));  // the listener is gone
  const Handover& told = given->told;
  Fd& client = given->client;
  name_this_thread("tr-session");
  setup.route = told.route;
  setup.server_start = told.server_start;
  setup.call_log = std::move(given->call_log);
  setup.credentials = credentials_of(told, setup.control);
  if (cache)
    setup.cache = std::make_unique<UploadCache>(std::move(*cache), told.cache_owner);
  ServeOptions own = options;
  own.listener = told.listener;
  const std::string peer = describe_peer(client);
  setup.host = own_host(client);
  serve_session(encrypted(transport::socket_stream(std::move(client), peer), options.tls), own,
                wire::decode_preamble(told.preamble), std::move(setup));
}

}  // namespace torch_remote::server
