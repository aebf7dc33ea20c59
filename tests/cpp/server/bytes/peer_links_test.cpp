#include "server/bytes/peer_links.h"

#include <future>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/platform.h"
#include "transport/dial.h"
#include "transport/memory_stream.h"
#include "transport/tls_certificate.h"
#include "transport/tls_stream.h"

namespace torch_remote::server {
namespace {

using transport::Stream;
using Bytes = std::vector<std::byte>;

wire::PeerTicket ticket_of(int value) {
  wire::PeerTicket ticket;
  ticket.fill(static_cast<std::byte>(value));
  return ticket;
}

Bytes some_bytes(size_t count) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 >> 3);
  return bytes;
}

// Runs both sides of a handshake. Returns whether both succeeded.
bool greet(Stream& listening, Stream& connecting, const wire::PeerTicket& wanted,
           const wire::PeerTicket& shown) {
  bool is_proven = false;
  auto other = std::async(std::launch::async, [&] {
    try {
      greet_connecting_peer(listening, wanted, [&] { is_proven = true; });
      return true;
    } catch (const ConnectionError&) {
      listening.shutdown();
      return false;
    }
  });
  bool is_good = true;
  try {
    greet_listening_peer(connecting, shown);
  } catch (const ConnectionError&) {
    is_good = false;
    connecting.shutdown();
  }
  const bool both = other.get() && is_good;
  EXPECT_EQ(is_proven, both);
  return both;
}

// Waits for the outcome of connect().
std::string connect(PeerLinks& links, uint64_t link, const wire::PeerTicket& ticket,
                    const wire::PeerAddress& place) {
  std::promise<std::string> outcome;
  links.connect(link, ticket, place, [&](const std::string& reason) { outcome.set_value(reason); });
  return outcome.get_future().get();
}

TEST(PeerHandshake, OnlyWhoKnowsTheTicketPasses) {
  for (const int shown : {1, 2}) {
    auto [listening, connecting] = transport::memory_pair();
    EXPECT_EQ(greet(*listening, *connecting, ticket_of(1), ticket_of(shown)), shown == 1);
  }
}

TEST(PeerHandshake, InsideTlsTheCertificateMustHaveThePin) {
  const auto server = transport::TlsContext::server_with(transport::make_certificate());
  for (const bool is_right : {true, false}) {
    auto [bare_listening, bare_connecting] = transport::memory_pair();
    transport::Address address;
    address.scheme = "tls";
    address.host = "192.0.2.1";
    address.pin = is_right ? server->own_pin() : std::string(43, 'A');
    const auto listening = transport::tls_stream(std::move(bare_listening), server);
    const auto connecting =
        transport::tls_stream(std::move(bare_connecting), transport::TlsContext::client(address));
    EXPECT_EQ(greet(*listening, *connecting, ticket_of(1), ticket_of(1)), is_right);
  }
}

TEST(PeerLinks, CopiesPassInBothDirectionsAtOnce) {
  PeerLinks one({"127.0.0.1"});
  PeerLinks other({""});
  const wire::PeerAddress place = one.listen(5, ticket_of(1));
  EXPECT_EQ(place.host, "127.0.0.1");
  EXPECT_EQ(place.pin, "");
  EXPECT_EQ(connect(other, 5, ticket_of(1), place), "");
  const Bytes bytes = some_bytes((4 << 20) + 3);
  for (PeerLinks* const links : {&one, &other})
    links->find(5)->send(bytes, nullptr);
  for (PeerLinks* const links : {&one, &other}) {
    Bytes got(bytes.size());
    links->find(5)->expect(got.size());
    links->find(5)->read(got);
    EXPECT_EQ(got, bytes);
  }
}

// Which fails soon.
PeerOptions impatient() {
  PeerOptions options;
  options.open_time = std::chrono::milliseconds(300);
  return options;
}

TEST(PeerLinks, AWrongTicketIsRefusedAndTheRightOneIsUsedOnce) {
  PeerLinks one({"127.0.0.1"});
  PeerLinks other({""});
  PeerLinks wrong(impatient());
  const wire::PeerAddress place = one.listen(5, ticket_of(1));
  EXPECT_EQ(connect(wrong, 5, ticket_of(2), place), kNoLink);
  EXPECT_EQ(one.find(5), nullptr);
  EXPECT_EQ(wrong.find(5), nullptr);
  EXPECT_EQ(connect(other, 5, ticket_of(1), place), "");
  EXPECT_NE(one.find(5), nullptr);
  EXPECT_EQ(connect(wrong, 6, ticket_of(1), place), kNoLink);
}

// Promise 14b.
TEST(PeerLinks, EveryFailureIsAnsweredInTheSameWordsAndAtTheSameTime) {
  PeerLinks listening({"127.0.0.1"});
  const wire::PeerAddress wrong_ticket = listening.listen(5, ticket_of(1));
  transport::Address address;
  address.scheme = "tcp";
  address.host = "127.0.0.1";
  const Fd silent = transport::listen_on(address);
  transport::Address unused = address;
  unused.port = 0;
  transport::listen_on(unused).reset();  // nobody listens there any more

  PeerOptions options = impatient();
  PeerLinks links(options);
  for (const uint16_t port : {wrong_ticket.port, address.port, unused.port}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(connect(links, port, ticket_of(2), {"127.0.0.1", port, ""}), kNoLink);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, options.open_time);
  }
}

// Promise 14b.
TEST(PeerLinks, NothingOutsideTheNetworksIsConnectedTo) {
  PeerLinks listening({"127.0.0.1"});
  const wire::PeerAddress place = listening.listen(5, ticket_of(1));
  PeerOptions options = impatient();
  options.networks = Networks::parse("--peers", "192.0.2.0/24");
  PeerLinks links(options);
  try {
    connect(links, 5, ticket_of(1), place);
    FAIL();
  } catch (const ConnectionError& error) {
    EXPECT_STREQ(error.what(), kNoLink);
  }
}

// Promise 14b.
TEST(PeerLinks, SilentConnectionsDoNotKeepTheOtherServerOut) {
  PeerLinks one({"127.0.0.1"});
  PeerLinks other({""});
  const wire::PeerAddress place = one.listen(5, ticket_of(1));
  transport::Address address;
  address.scheme = "tcp";
  address.host = place.host;
  address.port = place.port;
  std::vector<std::unique_ptr<Stream>> silent;
  for (size_t i = 0; i < 2 * PeerGreetings::kMost; ++i)
    silent.push_back(
        transport::dial(address, std::chrono::steady_clock::now() + std::chrono::seconds(30)));

  EXPECT_EQ(connect(other, 5, ticket_of(1), place), "");
  EXPECT_NE(one.find(5), nullptr);
}

TEST(PeerLinks, MoreLinksThanAllowedAreNotOpened) {
  PeerLinks links({"127.0.0.1"});
  for (uint64_t link = 1; link <= kMaxPeerOpenings; ++link)
    links.listen(link, ticket_of(1));
  EXPECT_THROW(links.listen(kMaxPeerOpenings + 1, ticket_of(1)), ConnectionError);
}

TEST(PeerLinks, OneThatIsClosedWhileItIsOpenedIsNotOpened) {
  PeerLinks one({"127.0.0.1"});
  PeerLinks other(impatient());
  const wire::PeerAddress place = one.listen(5, ticket_of(1));
  one.close(5);
  EXPECT_NE(connect(other, 5, ticket_of(1), place), "");
  EXPECT_EQ(one.find(5), nullptr);
  EXPECT_EQ(other.find(5), nullptr);
}

TEST(PeerLinks, BeyondLoopbackAPinIsNeededAndNoNameIsLookedUp) {
  PeerLinks links({""});
  EXPECT_THROW(links.connect(5, ticket_of(1), {"localhost", 80, ""}, {}), ConnectionError);
  EXPECT_THROW(links.connect(5, ticket_of(1), {"example.com", 80, "pin"}, {}), ConnectionError);
  EXPECT_THROW(links.connect(5, ticket_of(1), {"192.0.2.1", 80, ""}, {}), ConnectionError);
  EXPECT_THROW(links.listen(5, ticket_of(1)), ConnectionError);
}

TEST(PeerLink, APeerThatIsSilentGoneOrSendsAnotherLengthIsAnError) {
  Bytes got(100);
  auto [mine, silent] = transport::memory_pair();
  PeerLink link(std::move(mine), std::chrono::milliseconds(20));
  EXPECT_THROW(link.expect(100), ConnectionError);

  auto [mine_too, gone] = transport::memory_pair();
  PeerLink cut(std::move(mine_too), std::chrono::minutes(1));
  const uint64_t length = 100;
  const Bytes part(40);
  const std::array<std::span<const std::byte>, 2> parts{std::as_bytes(std::span(&length, 1)), part};
  gone->write(parts);
  gone->shutdown();
  cut.expect(100);
  EXPECT_THROW(cut.read(got), ConnectionError);

  auto [mine_again, longer] = transport::memory_pair();
  PeerLink other(std::move(mine_again), std::chrono::minutes(1));
  longer->write(parts);
  EXPECT_THROW(other.expect(99), ConnectionError);
}

TEST(PeerLink, CopiesThatNobodyTakesAreLimitedAndEndWithTheLink) {
  auto [mine, other] = transport::memory_pair(1 << 10);
  PeerLink link(std::move(mine), std::chrono::minutes(1));
  const Bytes bytes(1 << 20);
  const auto fill = [&] {
    for (size_t i = 0; i < kMaxQueuedCopies + 2; ++i)
      link.send(bytes, nullptr);
  };
  EXPECT_THROW(fill(), ConnectionError);
}

}  // namespace
}  // namespace torch_remote::server
