#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/listener/listen.h"
#include "server/session/handshake.h"
#include "server/session/lifetime.h"
#include "transport/deadline.h"
#include "transport/fd_stream.h"

// Note [Relaunch]
//
// A client cannot connect again to a command whose standard input and output are the connection.
// When the connection is lost (ssh dies, and its pipes with it), the client runs the command again.
// The new process reads the preamble. If that names a session, it sends the descriptors of its
// standard input and output to the session's process, which does the handshake as for any client
// that resumes (server/session/resume.h). So no third process copies bytes.
//
// It finds the session by a socket in the kernel's abstract namespace: that leaves no file, and
// each end checks that the other belongs to the same user. With the descriptors goes one end of a
// socket pair. The session closes it with the connection; then the command, which has the other
// end, exits.

namespace torch_remote::server {
namespace {

using PreambleBytes = std::array<std::byte, wire::kPreambleBytes>;

struct Standard {
  Fd incoming;
  Fd outgoing;
};

Fd duplicate(int descriptor) {
  Fd copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  if (!copy)
    throw_system_errno("fcntl", errno);
  return copy;
}

// Standard output is the connection, so whatever else is printed goes to standard error.
Standard take_standard() {
  Standard taken{duplicate(STDIN_FILENO), duplicate(STDOUT_FILENO)};
  const Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  return taken;
}

PreambleBytes read_preamble(transport::Stream& stream) {
  const transport::Deadline deadline(stream, kHandshakeTime);
  PreambleBytes bytes{};
  for (size_t have = 0; have < bytes.size();) {
    const size_t got = stream.read_some(std::span(bytes).subspan(have));
    if (got == 0)
      throw ConnectionError("the client left, or took too long, before its preamble");
    have += got;
  }
  return bytes;
}

std::string name_of(uint64_t route) {
  return "torch-remote-session-" + wire::session_id(route);
}

SessionSetup new_setup() {
  SessionSetup setup;
  while (!setup.control) {
    setup.route = new_session_route();
    setup.control = named_socket(name_of(setup.route));
  }
  return setup;
}

void wait_until_left(const Fd& companion) {
  pollfd polled{companion.get(), POLLIN, 0};
  while (::poll(&polled, 1, -1) < 0 && errno == EINTR) {
  }
}

void pass_on(const Fd& session, const PreambleBytes& preamble, Standard standard) {
  auto [ours, theirs] = socket_pair();
  const std::array passed{standard.incoming.get(), standard.outgoing.get(), theirs.get()};
  pass_descriptors(session, preamble, passed);  // fails if the session is busy or stopped
  standard = {};
  theirs.reset();
  wait_until_left(ours);
}

}  // namespace

void serve_stdio(ServeOptions options, bool only_resumes) {
  // Signals from the client's terminal, or from one that ssh made, must not end a session.
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  options.is_stdio = true;
  Standard standard = take_standard();
  auto stream = transport::pipe_stream(duplicate(standard.incoming.get()),
                                       duplicate(standard.outgoing.get()), "standard input");
  const PreambleBytes bytes = read_preamble(*stream);
  const wire::Preamble preamble = wire::decode_preamble(bytes);
  if (preamble.intent == 0 && !only_resumes) {
    standard = {};
    SessionSetup setup = new_setup();
    if (!options.cache.folder.empty()) {
      const std::string user = "uid " + std::to_string(::geteuid());
      setup.cache = std::make_unique<UploadCache>(start_cache_helper(options.cache, options.token),
                                                  wire::cache_owner(options.token, user));
    }
    setup.credentials = new_credentials(std::exchange(options.token, {}));
    serve_session(std::move(stream), options, preamble, std::move(setup));
  }
  std::string refusal = "this server only takes clients back; run it without --resume";
  if (preamble.intent == 1) {
    if (const Fd session = socket_to(name_of(preamble.route))) {
      stream.reset();
      pass_on(session, bytes, std::move(standard));
      leave(SessionExit::kClosed);
    }
    refusal = "this server no longer knows session " + wire::session_id(preamble.route);
  }
  log(LogLevel::kWarning, "a connection was refused", {{"reason", refusal}});
  send_refusal(*stream, refusal);
  leave(SessionExit::kFailed);
}

}  // namespace torch_remote::server
