#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

// A fast hash for tables inside one process. It is easily forged and depends on the byte order: do
// not send or store it, and compare the hashed values too.
namespace torch_remote {

namespace hash_detail {

inline constexpr uint64_t kSecret0 = 0x9e3779b97f4a7c15;
inline constexpr uint64_t kSecret1 = 0xd6e8feb86659fd93;
inline constexpr uint64_t kSecret2 = 0xa0761d6478bd642f;

inline uint64_t load8(const std::byte* from) noexcept {
  uint64_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline uint64_t load4(const std::byte* from) noexcept {
  uint32_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Loads an input of at most 16 bytes into two words. The loads may overlap, which saves branches.
inline void load_short(const std::byte* from, size_t size, uint64_t& a, uint64_t& b) noexcept {
  if (size >= 8) {
    a = load8(from);
    b = load8(from + size - 8);
    return;
  }
  if (size >= 4) {
    a = load4(from);
    b = load4(from + size - 4);
    return;
  }
  if (size > 0) {
    a = std::to_integer<uint64_t>(from[0]) << 16 | std::to_integer<uint64_t>(from[size / 2]) << 8 |
        std::to_integer<uint64_t>(from[size - 1]);
  }
}

}  // namespace hash_detail

// XOR of both halves of the 128-bit product: each bit of the result depends on nearly all bits of
// both arguments. Also combines two hashes, if neither can be 0.
inline uint64_t hash_mix(uint64_t a, uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0) noexcept {
  using hash_detail::kSecret0;
  using hash_detail::kSecret1;
  using hash_detail::kSecret2;
  using hash_detail::load8;
  const std::byte* from = bytes.data();
  const size_t size = bytes.size();
  uint64_t state = hash_mix(seed ^ kSecret0, kSecret1);
  uint64_t a = 0;
  uint64_t b = 0;
  if (size <= 16) {
    hash_detail::load_short(from, size, a, b);
  } else {
    size_t left = size;
    for (; left > 16; left -= 16, from += 16)
      state = hash_mix(load8(from) ^ kSecret1, load8(from + 8) ^ state);
    a = load8(from + left - 16);  // overlaps what the loop has read, so that no bytes are left over
    b = load8(from + left - 8);
  }
  const uint64_t last = hash_mix(a ^ kSecret1, b ^ state);
  return hash_mix(last ^ kSecret2, size ^ kSecret0 ^ state);
}

// Note [Hashes that a peer cannot choose]
//
// The keys of some tables are numbers that the peer chooses. With a hash that the peer knows, it
// can choose numbers that all fall into one place: each lookup then walks through all of them, or
// the table grows until they fall apart. NameHash depends on 256 random bits of this process, which
// the peer does not learn, as it does not learn hashes. SipHash would be safe against a peer that
// sees hashes too, but a lookup takes ten times as long, and a call looks up each of its tensors.
using HashKey = std::array<uint64_t, 4>;

// Random, and the same for all tables of this process.
const HashKey& process_hash_key();

// For tables whose keys are numbers or digests of the peer.
struct NameHash {
  HashKey key = process_hash_key();

  size_t operator()(uint64_t name) const noexcept {
    return hash_mix(hash_mix(name ^ key[0], key[1]) ^ key[2], key[3]);
  }

  // Of a longer name, for example a digest.
  template <size_t kBytes>
  size_t operator()(const std::array<std::byte, kBytes>& name) const noexcept {
    static_assert(kBytes % sizeof(uint64_t) == 0);
    uint64_t hash = 0;
    for (size_t at = 0; at < kBytes; at += sizeof hash) {
      uint64_t word = 0;
      std::memcpy(&word, name.data() + at, sizeof word);
      hash = (*this)(word ^ hash);
    }
    return hash;
  }
};

}  // namespace torch_remote
