#include "server/session/resume.h"

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/session/handshake.h"
#include "transport/fd_stream.h"

namespace torch_remote::server {
namespace {

using PreambleBytes = std::array<std::byte, wire::kPreambleBytes>;

void take_back(std::unique_ptr<transport::Stream> stream, const PreambleBytes& preamble,
               Session& session, const Identity& identity) {
  const std::string key = wire::resume_key(identity.secret, identity.token);
  const Greeting greeting = greet_again(*stream, wire::decode_preamble(preamble), key);
  session.resume(std::move(stream), greeting.received);
}

// Sends the client nothing more than greet_again() does; the client tries again.
void try_to_take_back(std::unique_ptr<transport::Stream> stream, const PreambleBytes& preamble,
                      Session& session, const Identity& identity) noexcept {
  try {
    take_back(std::move(stream), preamble, session, identity);
  } catch (const AuthenticationError& error) {
    log(LogLevel::kWarning, "a client that is not this session's was refused",
        {{"reason", error.what()}});
  } catch (const std::exception& error) {
    log(LogLevel::kInfo, "resuming with a client failed", {{"reason", error.what()}});
  }
}

// Counts `under_way` up, and down when the thread is done.
void begin(std::unique_ptr<transport::Stream> stream, const PreambleBytes& preamble,
           Session& session, const Identity& identity,
           const std::shared_ptr<std::atomic<int>>& under_way) {
  std::thread([stream = std::move(stream), preamble, &session, identity, under_way]() mutable {
    begin_worker_thread("tr-returning");
    try_to_take_back(std::move(stream), preamble, session, identity);
    under_way->fetch_sub(1);
  }).detach();
  under_way->fetch_add(1);
}

// From one socket, or from two pipes and the socket that keeps the process that sent them waiting.
std::unique_ptr<transport::Stream> stream_over(std::vector<Fd> passed, const std::string& peer) {
  if (passed.size() == 1) {
    const std::string who = describe_peer(passed[0]);
    return transport::socket_stream(std::move(passed[0]), who);
  }
  if (passed.size() != 3)
    throw std::invalid_argument("a connection of " + std::to_string(passed.size()) +
                                " descriptors");
  return transport::pipe_stream(std::move(passed[0]), std::move(passed[1]), peer,
                                std::move(passed[2]));
}

}  // namespace

void take_back_clients(Fd control, Session& session, const Identity& identity, std::string peer) {
  std::thread([control = std::move(control), &session, identity, peer = std::move(peer)] {
    begin_worker_thread("tr-resume");
    const auto under_way = std::make_shared<std::atomic<int>>(0);
    PreambleBytes preamble;
    for (std::vector<Fd> passed; !(passed = receive_descriptors(control, preamble)).empty();) {
      if (under_way->load() >= kMaxReturning) {
        passed.clear();  // closes them, so that the client does not wait for an answer
        continue;
      }
      try {
        begin(stream_over(std::move(passed), peer), preamble, session, identity, under_way);
      } catch (const std::exception& error) {
        log(LogLevel::kError, "cannot resume with a client", {{"reason", error.what()}});
      }
    }
    log(LogLevel::kInfo, "the listener is gone; the session ends with its connection");
    session.expect_no_return();
  }).detach();
}

}  // namespace torch_remote::server
