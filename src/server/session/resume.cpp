#include "server/session/resume.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <optional>
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
  // Starts to count a handshake. `is_known`: its client has shown the proof of the route. If there
  // are too many, this ends another one; for a client that is not known it ends none of a known
  // client. Nothing: none could be ended. `stream` must live until end().
  std::optional<uint64_t> begin(transport::Stream& stream, const std::string& peer, bool is_known)
      EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (under_way_.size() >= kMaxReturning && !end_one(is_known))
      return std::nullopt;
    under_way_.push_back({++last_, &stream, peer, is_known});
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
    bool is_known;
  };

  // False: all are known, and may not be ended for this one.
  bool end_one(bool is_known) REQUIRES(mutex_) {
    const bool all_known = std::ranges::all_of(under_way_, &Entry::is_known);
    if (all_known && !is_known)
      return false;
    std::vector<size_t> places;
    std::vector<std::string> peers;
    for (size_t i = 0; i < under_way_.size(); ++i) {
      if (under_way_[i].is_known && !all_known)
        continue;
      places.push_back(i);
      peers.push_back(under_way_[i].peer);
    }
    const size_t ended = places[oldest_of_busiest(peers)];
    under_way_[ended].stream->shutdown();
    under_way_.erase(under_way_.begin() + static_cast<ptrdiff_t>(ended));
    return true;
  }

  Mutex mutex_;
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::vector<Entry> under_way_ GUARDED_BY(mutex_);  // the oldest first
};

// A connection that claims to be of the session's client.
struct Returning {
  std::unique_ptr<transport::Stream> stream;
  std::string peer;  // of identify_peer()
  wire::Preamble preamble;
};

// What all handshakes of a session share. Lives as long as the last of them.
struct Returns {
  Session& session;
  Identity identity;
  uint64_t route_proof;  // of the session's client
  Handshakes handshakes;
  std::atomic<uint64_t> failures{0};
};

// Whoever has seen the session's id can cause these lines: the first is written, the second, the
// fourth, the eighth and so on.
void log_failure(Returns& returns, LogLevel level, std::string_view event, const std::string& peer,
                 const std::exception& error) {
  const uint64_t failures = ++returns.failures;
  if (std::has_single_bit(failures))
    log(level, event, {{"peer", peer}, {"reason", error.what()}, {"failures", failures}});
}

// Sends the client nothing more than greet_again() does; the client tries again.
void take_returning(Returning client, uint64_t number, Returns& returns) noexcept {
  try {
    const Greeting greeting =
        greet_again(*client.stream, client.preamble, returns.identity.resume_key);
    if (returns.handshakes.end(number))
      returns.session.resume(std::move(client.stream), greeting.received);
  } catch (const AuthenticationError& error) {
    log_failure(returns, LogLevel::kWarning, "a client that is not this session's was refused",
                client.peer, error);
  } catch (const std::exception& error) {
    log_failure(returns, LogLevel::kInfo, "resuming with a client failed", client.peer, error);
  }
  returns.handshakes.end(number);  // before the stream is destroyed
}

void begin(Returning client, const std::shared_ptr<Returns>& returns) {
  const bool is_known = client.preamble.route_proof == returns->route_proof;
  const auto number = returns->handshakes.begin(*client.stream, client.peer, is_known);
  if (!number)
    return;  // the connection is closed
  try {
    std::thread([client = std::move(client), number = *number, returns]() mutable {
      begin_worker_thread("tr-returning");
      take_returning(std::move(client), number, *returns);
    }).detach();
  } catch (const std::system_error&) {  // no thread could be started
    returns->handshakes.end(*number);
    throw;
  }
}

// From one socket, or from two pipes and the socket that keeps the process that sent them waiting.
Returning client_over(std::vector<Fd> passed, const wire::Preamble& preamble,
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

void take_returning_clients(Fd control, Session& session, const Identity& identity,
                            std::string peer) {
  std::thread([control = std::move(control), &session, identity, peer = std::move(peer)] {
    begin_worker_thread("tr-resume");
    const std::shared_ptr<Returns> returns(
        new Returns{session, identity, wire::route_proof(identity.resume_key), {}, {}});
    PreambleBytes preamble;
    for (std::vector<Fd> passed; !(passed = receive_descriptors(control, preamble)).empty();) {
      try {
        begin(client_over(std::move(passed), wire::decode_preamble(preamble), identity, peer),
              returns);
      } catch (const std::exception& error) {
        log_failure(*returns, LogLevel::kError, "cannot resume with a client", "", error);
      }
    }
    log(LogLevel::kInfo, "the listener is gone; the session ends with its connection");
    session.expect_no_return();
  }).detach();
}

}  // namespace torch_remote::server
