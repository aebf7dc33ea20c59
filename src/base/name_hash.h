#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/hash.h"

namespace torch_remote {

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
