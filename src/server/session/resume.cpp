#include "server/session/resume.h"

#include <array>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/peer_limits.h"
#include "base/platform.h"
#include "server/session/handshake.h"
#include "transport/fd_stream.h"

namespace torch_remote::server {
namespace {

using PreambleBytes = std::array<std::byte, wire::kPreambleBytes>;

// The handshakes under way. Thread-safe.
class Handshakes {
 public:
  // Ends another handshake if there are too many. `stream` must live until end().
  uint64_t begin(transport::Stream& stream, const std::string& peer) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (under_way_.size() >= kMaxReturning) {
      std::vector<std::string> peers;
      for (const Entry& entry : under_way_)
        peers.push_back(entry.peer);
      const auto ended = under_way_.begin() + static_cast<ptrdiff_t>(oldest_of_busiest(peers));
      ended->stream->shutdown();
      under_way_.erase(ended);
    }
    under_way_.push_back({++last_, &stream, peer});
    return last_;
  }

  // False: it was ended for another.
  bool end(uint64_t number) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::erase_if(under_way_, [&](const Entry& one) { return one.number == number; }) > 0;
  }

 private:
  struct Entry {
    uint64_t number;
    transport::Stream* stream;
    std::string peer;
  };

  Mutex mutex_;
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::vector<Entry> under_way_ GUARDED_BY(mutex_);  // the oldest first
};

// A connection that claims to be of the session's client.
struct Returning {
  std::unique_ptr<transport::Stream> stream;
  std::string peer;  // of identify_peer()
  PreambleBytes preamble{};
};

// Sends the client nothing more than greet_again() does; the client tries again.
void take_back(Returning client, uint64_t number, Handshakes& handshakes, Session& session,
               const Identity& identity) noexcept {
  try {
    const Greeting greeting =
        greet_again(*client.stream, wire::decode_preamble(client.preamble), identity.resume_key);
    if (handshakes.end(number))
      session.resume(std::move(client.stream), greeting.received);
  } catch (const AuthenticationError& error) {
    log(LogLevel::kWarning, "a client that is not this session's was refused",
        {{"reason", error.what()}});
  } catch (const std::exception& error) {
    log(LogLevel::kInfo, "resuming with a client failed", {{"reason", error.what()}});
  }
  handshakes.end(number);  // before the stream is destroyed
}

void begin(Returning client, Session& session, const Identity& identity,
           const std::shared_ptr<Handshakes>& handshakes) {
  const uint64_t number = handshakes->begin(*client.stream, client.peer);
  try {
    std::thread([client = std::move(client), number, &session, identity, handshakes]() mutable {
      begin_worker_thread("tr-returning");
      take_back(std::move(client), number, *handshakes, session, identity);
    }).detach();
  } catch (const std::system_error&) {  // no thread could be started
    handshakes->end(number);
    throw;
  }
}

// From one socket, or from two pipes and the socket that keeps the process that sent them waiting.
Returning client_over(std::vector<Fd> passed, const PreambleBytes& preamble,
                      const Identity& identity, const std::string& peer) {
  if (passed.size() == 1) {
    const std::string who = describe_peer(passed[0]);
    std::string limited_as = identify_peer(passed[0]);
    return {encrypted(transport::socket_stream(std::move(passed[0]), who), identity.tls),
            std::move(limited_as), preamble};
  }
  if (passed.size() != 3)
    throw std::invalid_argument("a connection of " + std::to_string(passed.size()) +
                                " descriptors");
  return {transport::pipe_stream(std::move(passed[0]), std::move(passed[1]), peer,
                                 std::move(passed[2])),
          "pipe", preamble};
}

}  // namespace

void take_back_clients(Fd control, Session& session, const Identity& identity, std::string peer) {
  std::thread([control = std::move(control), &session, identity, peer = std::move(peer)] {
    begin_worker_thread("tr-resume");
    const auto handshakes = std::make_shared<Handshakes>();
    PreambleBytes preamble;
    for (std::vector<Fd> passed; !(passed = receive_descriptors(control, preamble)).empty();) {
      try {
        begin(client_over(std::move(passed), preamble, identity, peer), session, identity,
              handshakes);
      } catch (const std::exception& error) {
        log(LogLevel::kError, "cannot resume with a client", {{"reason", error.what()}});
      }
    }
    log(LogLevel::kInfo, "the listener is gone; the session ends with its connection");
    session.expect_no_return();
  }).detach();
}

}  // namespace torch_remote::server
