#include "base/hash.h"

#include <span>

#include "base/platform.h"

namespace torch_remote {

const HashKey& process_hash_key() {
  static const HashKey key = [] {
    HashKey made;
    random_bytes(std::as_writable_bytes(std::span(made)));
    made[1] |= 1;  // a factor of 0 would make all hashes 0
    made[3] |= 1;
    return made;
  }();
  return key;
}

}  // namespace torch_remote
