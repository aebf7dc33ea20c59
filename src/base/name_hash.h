#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

// For tables whose keys are numbers of the peer.
struct NameHash {
  HashKey key = process_hash_key();

  size_t operator()(uint64_t name) const noexcept {
    return hash_mix(hash_mix(name ^ key[0], key[1]) ^ key[2], key[3]);
  }
};

}  // namespace torch_remote
