#include "server/bytes/peer_links.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <poll.h>

#include "base/error.h"
#include "base/log.h"
#include "base/peer_limits.h"
#include "base/platform.h"
#include "transport/address.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"
#include "transport/tls_certificate.h"
#include "transport/tls_stream.h"

namespace torch_remote::server {
namespace {

using Clock = std::chrono::steady_clock;

bool is_loopback(const std::string& host) {
  return transport::SocketAddress::loopback(host, 1).has_value();
}

// Other texts are names of hosts, which take long to look up.
bool is_in_digits(const std::string& host) {
  in6_addr any{};
  return ::inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

// The end of the wait is looked for that often.
constexpr int kLookMilliseconds = 100;

bool is_readable(const Fd& socket) {
  pollfd polled{socket.get(), POLLIN, 0};
  return ::poll(&polled, 1, kLookMilliseconds) > 0;
}

std::chrono::milliseconds time_until(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

std::unique_ptr<transport::Stream> dial_peer(const wire::PeerAddress& peer, Clock::time_point end) {
  transport::Address address;
  address.scheme = peer.pin.empty() ? "tcp" : "tls";
  address.host = peer.host;
  address.port = peer.port;
  address.pin = peer.pin;
  auto stream = transport::dial(address, end);
  if (peer.pin.empty())
    return stream;
  return transport::tls_stream(std::move(stream), transport::TlsContext::client(address));
}

}  // namespace

PeerLinks::~PeerLinks() {
  is_over_ = true;
  std::list<Opening> openings;
  std::unordered_map<uint64_t, std::shared_ptr<PeerLink>> links;
  {
    MutexLock lock(mutex_);
    openings.swap(openings_);
  }
  for (Opening& opening : openings)
    opening.thread.join();
  MutexLock lock(mutex_);
  links.swap(links_);
}

PeerLinks::Tls PeerLinks::own_tls() {
  if (tls_ == nullptr)
    tls_ = transport::TlsContext::server_with(transport::make_certificate());
  return tls_;
}

void PeerLinks::open(uint64_t link, std::function<void(const Opening&)> work) {
  MutexLock lock(mutex_);
  for (auto opening = openings_.begin(); opening != openings_.end();) {
    if (!opening->is_done) {
      ++opening;
      continue;
    }
    opening->thread.join();
    opening = openings_.erase(opening);
  }
  if (openings_.size() >= kMaxPeerOpenings || links_.size() >= kMaxPeerLinks)
    throw ConnectionError("there are too many links to other servers");
  Opening& opening = openings_.emplace_back();
  opening.link = link;
  try {
    opening.thread = std::thread([&opening, work = std::move(work)] {
      name_this_thread("tr-peer-open");
      try {
        work(opening);
      } catch (const std::exception& error) {  // the client takes no replies
        log(LogLevel::kWarning, "a link was not told of", {{"reason", error.what()}});
      }
      opening.is_done = true;
    });
  } catch (...) {
    openings_.pop_back();
    throw;
  }
}

wire::PeerAddress PeerLinks::listen(uint64_t link, const wire::PeerTicket& ticket) {
  if (options_.host.empty())
    throw ConnectionError("the client does not reach this server over TCP");
  transport::Address address;
  address.host = options_.host;
  wire::PeerAddress own{options_.host, 0, ""};
  Tls tls;  // null: not encrypted
  if (is_loopback(options_.host)) {
    address.scheme = "tcp";
  } else {
    address.scheme = "tls";
    tls = own_tls();
    own.pin = tls->own_pin();
  }
  const auto socket = std::make_shared<const Fd>(transport::listen_on(address));
  own.port = address.port;
  open(link, [this, socket, tls, ticket](const Opening& opening) {
    accept(*socket, tls, ticket, opening);
  });
  return own;
}

void PeerLinks::accept(const Fd& socket, const Tls& tls, const wire::PeerTicket& ticket,
                       const Opening& opening) {
  PeerGreetings greetings(
      [&](const std::shared_ptr<transport::Stream>& stream, std::atomic<bool>& is_link) {
        admit(stream, ticket, opening, is_link);
      });
  const auto end = Clock::now() + kTicketTime;
  while (Clock::now() < end && !is_over_ && !opening.is_closed && !greetings.has_link()) {
    if (!is_readable(socket))
      continue;
    try {
      Fd connection = accept_connection(socket);
      const std::string peer = identify_peer(connection);
      const std::string who = describe_peer(connection);
      auto bare = transport::socket_stream(std::move(connection), who);
      greetings.begin(
          tls == nullptr ? std::move(bare) : transport::tls_stream(std::move(bare), tls), peer);
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, "no link to another server", {{"reason", error.what()}});
      return;
    }
  }
  if (!greetings.has_link())
    log(LogLevel::kInfo, "no other server has come for its link", {{"link", opening.link}});
}

void PeerLinks::admit(const std::shared_ptr<transport::Stream>& stream,
                      const wire::PeerTicket& ticket, const Opening& opening,
                      std::atomic<bool>& is_link) {
  bool is_added = false;
  try {
    greet_connecting_peer(*stream, ticket, [&] {
      is_link = true;
      add(opening, stream);
      is_added = true;
    });
  } catch (const std::exception& error) {
    const uint64_t refused = ++refused_;
    if (std::has_single_bit(refused))  // anybody can cause this line: the 1st, 2nd, 4th, 8th…
      log(LogLevel::kWarning, "a connection for a link was refused",
          {{"peer", stream->peer()}, {"reason", error.what()}, {"refused", refused}});
    if (is_added)
      remove(opening.link);
    is_link = false;
  }
}

void PeerLinks::wait_until(Clock::time_point end) const {
  while (Clock::now() < end && !is_over_)
    std::this_thread::sleep_for(
        std::min(time_until(end), std::chrono::milliseconds(kLookMilliseconds)));
}

void PeerLinks::connect(uint64_t link, const wire::PeerTicket& ticket,
                        const wire::PeerAddress& peer,
                        std::function<void(const std::string&)> on_done) {
  if (peer.pin.empty() && !is_loopback(peer.host))
    throw ConnectionError("a link beyond loopback needs a pin");
  if (!is_in_digits(peer.host))
    throw ConnectionError("the address of a link is not in digits");
  if (!options_.networks.contain(peer.host)) {
    note_no_link(peer, "the address is not in a network of --peers");
    throw ConnectionError(kNoLink);
  }
  open(link, [this, ticket, peer, on_done = std::move(on_done)](const Opening& opening) {
    const Clock::time_point end = Clock::now() + options_.open_time;
    std::string reason;
    try {
      auto stream = dial_peer(peer, end);
      greet_listening_peer(*stream, ticket, time_until(end));
      add(opening, std::move(stream));
    } catch (const std::exception& error) {
      note_no_link(peer, error.what());
      reason = kNoLink;
      wait_until(end);  // also if the client closes the link meanwhile, which would tell as much
    }
    on_done(reason);
  });
}

void PeerLinks::note_no_link(const wire::PeerAddress& peer, const std::string& reason) {
  log(LogLevel::kWarning, "no link to another server",
      {{"host", peer.host}, {"port", peer.port}, {"reason", reason}});
}

void PeerLinks::add(const Opening& opening, std::shared_ptr<transport::Stream> stream) {
  auto made = std::make_shared<PeerLink>(std::move(stream), options_.silence);
  MutexLock lock(mutex_);
  if (opening.is_closed)
    throw ConnectionError("the client has closed the link");
  if (!links_.try_emplace(opening.link, std::move(made)).second)
    throw ConnectionError("a link with the number " + std::to_string(opening.link) +
                          " is open already");
}

std::shared_ptr<PeerLink> PeerLinks::find(uint64_t link) {
  MutexLock lock(mutex_);
  const auto found = links_.find(link);
  return found == links_.end() ? nullptr : found->second;
}

void PeerLinks::close(uint64_t link) {
  {
    MutexLock lock(mutex_);
    for (Opening& opening : openings_)
      if (opening.link == link)
        opening.is_closed = true;
  }
  remove(link);
}

void PeerLinks::remove(uint64_t link) {
  std::shared_ptr<PeerLink> closed;  // ended after the lock is released
  MutexLock lock(mutex_);
  const auto found = links_.find(link);
  if (found == links_.end())
    return;
  closed = std::move(found->second);
  links_.erase(found);
}

PeerGreetings::~PeerGreetings() {
  while (!greetings_.empty())
    end(greetings_.begin());
}

void PeerGreetings::begin(std::shared_ptr<transport::Stream> stream, std::string peer) {
  make_room();
  Greeting& made = greetings_.emplace_back();
  made.stream = std::move(stream);
  made.peer = std::move(peer);
  try {
    made.thread = std::thread([this, &made] {
      name_this_thread("tr-peer-greet");
      greet_(made.stream, made.is_link);
      if (made.is_link)
        has_link_ = true;
      made.is_done = true;
    });
  } catch (...) {
    greetings_.pop_back();
    throw;
  }
}

void PeerGreetings::end(std::list<Greeting>::iterator greeting) {
  if (!greeting->is_link)
    greeting->stream->shutdown();
  greeting->thread.join();
  greetings_.erase(greeting);
}

void PeerGreetings::make_room() {
  for (auto greeting = greetings_.begin(); greeting != greetings_.end();) {
    const auto current = greeting++;
    if (current->is_done)
      end(current);
  }
  if (greetings_.size() < kMost)
    return;
  std::vector<std::string> peers;
  for (const Greeting& greeting : greetings_)
    peers.push_back(greeting.peer);
  end(std::next(greetings_.begin(), static_cast<ptrdiff_t>(oldest_of_busiest(peers))));
}

}  // namespace torch_remote::server
