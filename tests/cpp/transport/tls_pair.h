#pragma once

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <unistd.h>

#include "transport/tls_certificate.h"
#include "transport/tls_context.h"
#include "transport/tls_stream.h"

namespace torch_remote::transport {

// A file with these contents, until the end of the test program.
inline std::string temporary_file(const std::string& contents) {
  std::string name = "/tmp/torch_remote_test.XXXXXX";
  const int descriptor = ::mkstemp(name.data());
  if (descriptor < 0 || ::write(descriptor, contents.data(), contents.size()) !=
                            static_cast<ssize_t>(contents.size()))
    throw std::runtime_error("mkstemp");
  ::close(descriptor);
  return name;
}

inline std::shared_ptr<const TlsContext> server_context(const std::string& client_ca = "") {
  const std::string file = temporary_file(make_certificate());
  auto context = TlsContext::server(file, "", client_ca);
  ::unlink(file.c_str());
  return context;
}

inline Address pinned(std::string pin) {
  Address address = parse_address("tls://127.0.0.1:1");
  address.pin = std::move(pin);
  return address;
}

using StreamPair = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;

// The client's stream first. Both ends have done their handshakes.
inline StreamPair secured(StreamPair plain, TlsOptions options = {}) {
  static const std::shared_ptr<const TlsContext> server = server_context();
  static const auto client = TlsContext::client(pinned(server->own_pin()));
  StreamPair pair = {tls_stream(std::move(plain.first), client, options),
                     tls_stream(std::move(plain.second), server, options)};
  std::thread accepts([&] { pair.second->secure({}); });
  pair.first->secure({});
  accepts.join();
  return pair;
}

}  // namespace torch_remote::transport
