#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace torch_remote::wire {

using Digest = std::array<std::byte, 32>;

// The SHA-256 of bytes that come in parts. Externally synchronised.
class Sha256 {
 public:
  Sha256();

  void add(std::span<const std::byte> part);
  // Once, after the last part.
  Digest finish();

 private:
  std::unique_ptr<void, void (*)(void*)> state_;  // of OpenSSL
};

Digest sha256(std::span<const std::byte> bytes);

}  // namespace torch_remote::wire
