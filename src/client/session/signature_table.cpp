#include "client/session/signature_table.h"

#include <cstring>
#include <utility>

namespace torch_remote::client {
namespace {

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

SignatureTable::SignatureTable(size_t buckets, uint64_t bytes)
    : most_bytes_(bytes), buckets_(buckets, 0) {}

SignaturePtr SignatureTable::find(uint64_t hash, std::span<const std::byte> key) {
  for (uint32_t at = buckets_[bucket_of(hash)]; at != 0; at = next_[at - 1]) {
    const SignaturePtr& signature = signatures_[at - 1];
    if (signature->hash != hash || !equal(signature->key, key))
      continue;
    signature->used = true;
    return signature;
  }
  return {};
}

SignaturePtr SignatureTable::add(SignaturePtr signature) {
  if (SignaturePtr there = find(signature->hash, signature->key))
    return there;
  const uint32_t index = index_to_use();
  signature->index = index;
  signature->used = true;
  signatures_[index] = signature;
  link(index);
  return signature;
}

SignaturePtr SignatureTable::add_known(SignaturePtr signature) {
  if (signature->index != Signature::kNotOnWire)
    return signature;
  SignaturePtr there = add(signature);
  if (there->outputs_known)
    return there;
  replace(signature);
  return signature;
}

void SignatureTable::replace(SignaturePtr known) {
  const SignaturePtr there = find(known->hash, known->key);
  if (!there)
    return;
  known->index = there->index;
  known->used = true;
  signatures_[there->index] = known;
  there->index = Signature::kNotOnWire;
  there->announced = false;
}

void SignatureTable::clear() {
  *this = SignatureTable(1);
}

void SignatureTable::mark_failed(uint64_t index) {
  if (index < signatures_.size() && signatures_[index])
    signatures_[index]->is_doubted = true;
}

uint32_t SignatureTable::index_to_use() {
  if (!free_indices_.empty()) {
    const uint32_t index = free_indices_.back();
    free_indices_.pop_back();
    return index;
  }
  if (signatures_.size() < wire::kMaxSignatures) {
    signatures_.emplace_back();
    next_.push_back(0);
    sizes_.push_back(0);
    return static_cast<uint32_t>(signatures_.size() - 1);
  }
  return give_up_next(Signature::kNotOnWire);
}

uint32_t SignatureTable::give_up_next(uint32_t kept) {
  const auto pass = [this] { hand_ = (hand_ + 1) % static_cast<uint32_t>(signatures_.size()); };
  while (!signatures_[hand_] || hand_ == kept || signatures_[hand_]->used) {
    if (signatures_[hand_] && hand_ != kept)
      signatures_[hand_]->used = false;
    pass();
  }
  const uint32_t index = hand_;
  pass();
  unlink(index);
  signatures_[index]->index = Signature::kNotOnWire;
  signatures_[index]->announced = false;
  return index;
}

std::vector<uint32_t> SignatureTable::count_announced(uint32_t index, uint64_t bytes) {
  bytes_ += bytes - sizes_[index];
  sizes_[index] = bytes;
  std::vector<uint32_t> given_up;
  while (bytes_ > most_bytes_ && bytes_ > sizes_[index]) {  // another signature has bytes
    const uint32_t other = give_up_next(index);
    signatures_[other].reset();
    bytes_ -= std::exchange(sizes_[other], 0);
    free_indices_.push_back(other);
    given_up.push_back(other);
  }
  return given_up;
}

void SignatureTable::link(uint32_t index) {
  uint32_t& head = buckets_[bucket_of(signatures_[index]->hash)];
  next_[index] = head;
  head = index + 1;
}

void SignatureTable::unlink(uint32_t index) {
  uint32_t* at = &buckets_[bucket_of(signatures_[index]->hash)];
  while (*at != index + 1)
    at = &next_[*at - 1];
  *at = next_[index];
}

}  // namespace torch_remote::client
