// How much a TLS stream moves over loopback TCP, against a bare OpenSSL pair (blocking SSL_write
// and SSL_read on the sockets) with the same cipher, in turns.
//
//   tls_bulk [MiB [turns]]
//
// Prints the median rate of each way and its share of the bare pair's.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"
#include "transport/tls_certificate.h"
#include "transport/tls_stream.h"

namespace {

using namespace torch_remote;             // NOLINT
using namespace torch_remote::transport;  // NOLINT

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;
using Contexts = std::pair<std::shared_ptr<const TlsContext>, std::shared_ptr<const TlsContext>>;

constexpr size_t kBlock = size_t{1} << 20;  // as a connection's chunks

std::pair<Fd, Fd> tcp_sockets() {
  Address address = parse_address("tcp://127.0.0.1:0");
  const Fd listener = listen_on(address);
  const sockaddr_in to{AF_INET, htons(address.port), {htonl(INADDR_LOOPBACK)}, {}};
  Fd client = stream_socket(AF_INET);
  if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    std::abort();
  return {std::move(client), accept_connection(listener)};
}

// The client's context first.
Contexts make_contexts() {
  std::string name = "/tmp/torch_remote_bench.XXXXXX";
  Fd file(::mkstemp(name.data()));
  const std::string pem = make_certificate();
  if (::write(file.get(), pem.data(), pem.size()) != static_cast<ssize_t>(pem.size()))
    std::abort();
  auto server = TlsContext::server(name, "", "");
  ::unlink(name.c_str());
  Address address = parse_address("tls://127.0.0.1:1");
  address.pin = server->own_pin();
  return {TlsContext::client(address), server};
}

double seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class BarePair {
 public:
  explicit BarePair(const Contexts& contexts) : sockets_(tcp_sockets()) {
    const int yes = 1;
    ::setsockopt(sockets_.first.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    client_ = SSL_new(contexts.first->get());
    server_ = SSL_new(contexts.second->get());
    seen_.wanted_pin = contexts.first->wanted_pin();
    SSL_set_app_data(client_, &seen_);
    SSL_set_fd(client_, sockets_.first.get());
    SSL_set_fd(server_, sockets_.second.get());
    std::thread accepts([&] { SSL_accept(server_); });
    if (SSL_connect(client_) != 1)
      std::abort();
    accepts.join();
    std::printf("cipher %s\n", SSL_get_cipher(client_));
  }

  ~BarePair() {
    SSL_free(client_);
    SSL_free(server_);
  }

  void move(const Bytes& from, Bytes& into) {
    std::thread writes([&] {
      for (size_t at = 0; at < from.size(); at += kBlock)
        if (SSL_write(client_, from.data() + at, kBlock) != kBlock)
          std::abort();
    });
    for (size_t at = 0; at < into.size();) {
      const int got = SSL_read(server_, into.data() + at, static_cast<int>(into.size() - at));
      if (got <= 0)
        std::abort();
      at += static_cast<size_t>(got);
    }
    writes.join();
  }

 private:
  std::pair<Fd, Fd> sockets_;
  SeenCertificate seen_;
  SSL* client_;
  SSL* server_;
};

void write_all(Stream& stream, const Bytes& bytes) {
  for (size_t at = 0; at < bytes.size(); at += kBlock) {
    const std::span<const std::byte> block = std::span(bytes).subspan(at, kBlock);
    stream.write({&block, 1});
  }
}

void read_all(Stream& stream, Bytes& into) {
  for (size_t at = 0; at < into.size();)
    at += stream.read_some(std::span(into).subspan(at));
}

class Streams {
 public:
  explicit Streams(const Contexts* contexts) {
    auto [client, server] = tcp_sockets();
    client_ = socket_stream(std::move(client), "client");
    server_ = socket_stream(std::move(server), "server");
    if (contexts == nullptr)
      return;
    client_ = tls_stream(std::move(client_), contexts->first);
    server_ = tls_stream(std::move(server_), contexts->second);
    std::thread accepts([&] { server_->secure({}); });
    client_->secure({});
    accepts.join();
  }

  void up(const Bytes& from, Bytes& into) {
    std::thread writes([&] { write_all(*client_, from); });
    read_all(*server_, into);
    writes.join();
  }

  void down(const Bytes& from, Bytes& into) {
    std::thread writes([&] { write_all(*server_, from); });
    read_all(*client_, into);
    writes.join();
  }

  void both(const Bytes& from, Bytes& into, Bytes& back) {
    std::thread there([&] { up(from, into); });
    down(from, back);
    there.join();
  }

  // So many messages of 32 bytes there and back, one at a time.
  void round_trips(int count) {
    Bytes message(32);
    Bytes answer(32);
    std::thread answers([&] {
      for (int i = 0; i < count; ++i) {
        read_all(*server_, message);
        write_small(*server_, message);
      }
    });
    Bytes sent(32);
    for (int i = 0; i < count; ++i) {
      write_small(*client_, sent);
      read_all(*client_, answer);
    }
    answers.join();
  }

 private:
  static void write_small(Stream& stream, const Bytes& bytes) {
    const std::span<const std::byte> part = bytes;
    stream.write({&part, 1});
  }

  std::unique_ptr<Stream> client_;
  std::unique_ptr<Stream> server_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 256;
  const int turns = argc > 2 ? std::atoi(argv[2]) : 7;
  constexpr int kTrips = 5000;
  const Contexts contexts = make_contexts();
  BarePair bare(contexts);
  Streams encrypted(&contexts);
  Streams plain(nullptr);
  const Bytes from(mib << 20, std::byte{1});
  Bytes into(mib << 20);
  Bytes back(mib << 20);

  struct Way {
    const char* name;
    std::function<void()> work;
    double mib;
    std::vector<double> times = {};
  };

  const auto size = static_cast<double>(mib);
  std::vector<Way> ways = {
      {"bare OpenSSL pair", [&] { bare.move(from, into); }, size},
      {"TLS stream, up", [&] { encrypted.up(from, into); }, size},
      {"TLS stream, down", [&] { encrypted.down(from, into); }, size},
      {"TLS stream, both at once", [&] { encrypted.both(from, into, back); }, 2 * size},
      {"plain stream, up", [&] { plain.up(from, into); }, size},
      {"TLS stream, round trips", [&] { encrypted.round_trips(kTrips); }, 0},
      {"plain stream, round trips", [&] { plain.round_trips(kTrips); }, 0},
  };
  for (Way& way : ways)
    way.work();
  for (int turn = 0; turn < turns; ++turn)
    for (Way& way : ways)
      way.times.push_back(seconds(way.work));
  const double base = median(ways[0].times);
  for (const Way& way : ways) {
    const double time = median(way.times);
    if (way.mib == 0)
      std::printf("%-26s %8.1f us each\n", way.name, 1e6 * time / kTrips);
    else
      std::printf("%-26s %8.0f MiB/s %6.2f\n", way.name, way.mib / time,
                  way.mib / time * base / size);
  }
  return 0;
}
