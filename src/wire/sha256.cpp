#include "wire/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace torch_remote::wire {
namespace {

void check(int result) {
  if (result != 1)
    throw InternalError("SHA-256 failed");
}

EVP_MD_CTX* context(void* state) {
  return static_cast<EVP_MD_CTX*>(state);
}

void free_context(void* state) {
  EVP_MD_CTX_free(context(state));
}

}  // namespace

Sha256::Sha256() : state_(EVP_MD_CTX_new(), free_context) {
  check(EVP_DigestInit_ex(context(state_.get()), EVP_sha256(), nullptr));
}

void Sha256::add(std::span<const std::byte> part) {
  check(EVP_DigestUpdate(context(state_.get()), part.data(), part.size()));
}

Digest Sha256::finish() {
  Digest digest{};
  unsigned length = 0;
  auto* const into = reinterpret_cast<unsigned char*>(digest.data());
  check(EVP_DigestFinal_ex(context(state_.get()), into, &length));
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 sum;
  sum.add(bytes);
  return sum.finish();
}

}  // namespace torch_remote::wire
