// Any bytes as what a client of a tls:// server sends before it is authenticated, and as an
// address: its options come from a user or from a program.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <unistd.h>

#include "base/error.h"
#include "transport/address.h"
#include "transport/tls_certificate.h"
#include "transport/tls_stream.h"

namespace {

using namespace torch_remote::transport;  // NOLINT

void require(bool holds) {
  if (!holds)
    std::abort();
}

// Gives these bytes and then ends; what is written is dropped.
class FixedStream : public Stream {
 public:
  explicit FixedStream(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t read_some(std::span<std::byte> into) override {
    const size_t count = std::min(into.size(), bytes_.size());
    if (count > 0)
      std::memcpy(into.data(), bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
    return count;
  }

  void write(std::span<const std::span<const std::byte>> /*parts*/) override {}

  void shutdown() noexcept override {}

  std::string peer() const override { return "fuzzer"; }

 private:
  std::span<const std::byte> bytes_;
};

std::shared_ptr<const TlsContext> make_context() {
  std::string name = "/tmp/torch_remote_fuzz.XXXXXX";
  const int file = ::mkstemp(name.data());
  const std::string pem = make_certificate();
  require(::write(file, pem.data(), pem.size()) == static_cast<ssize_t>(pem.size()));
  ::close(file);
  auto context = TlsContext::server(name, "", "");
  ::unlink(name.c_str());
  return context;
}

void greet(std::span<const std::byte> bytes) {
  static const auto context = make_context();
  const auto stream = tls_stream(std::make_unique<FixedStream>(bytes), context);
  stream->secure({});
  require(false);  // it would take the server's answers to finish a handshake
}

void parse(std::span<const std::byte> bytes) {
  const std::string url(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Address address = parse_address(url);
  require(parse_address(to_string(address)) == address);
  if (!address.pin.empty()) {
    const std::string pin = parse_pin(address.pin);
    require(parse_pin(pin) == pin);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    if (data[0] % 2 == 0)
      greet(bytes.subspan(1));
    else
      parse(bytes.subspan(1));
  } catch (const torch_remote::ConnectionError&) {
    // Refused.
  } catch (const std::invalid_argument&) {
    // Not an address or a pin.
  }
  return 0;
}
