#include "client/session/signature_table.h"

#include <cstring>

namespace torch_remote::client {
namespace {

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

SignatureTable::SignatureTable(size_t buckets) : buckets_(buckets, 0) {}

SignaturePtr SignatureTable::find(uint64_t hash, std::span<const std::byte> key) {
  for (uint32_t at = buckets_[bucket_of(hash)]; at != 0; at = next_[at - 1]) {
    const SignaturePtr& signature = slots_[at - 1];
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
  const uint32_t slot = slot_to_use();
  signature->slot = slot;
  signature->used = true;
  slots_[slot] = signature;
  link(slot);
  return signature;
}

void SignatureTable::replace(SignaturePtr known) {
  const SignaturePtr there = find(known->hash, known->key);
  if (!there)
    return;
  known->slot = there->slot;
  known->used = true;
  slots_[there->slot] = known;
  there->slot = Signature::kNotOnWire;
  there->announced = false;
}

void SignatureTable::clear() {
  *this = SignatureTable(1);
}

void SignatureTable::mark_failed(uint64_t slot) {
  if (slot < slots_.size())
    slots_[slot]->is_doubted = true;
}

uint32_t SignatureTable::slot_to_use() {
  if (slots_.size() < wire::kMaxSignatures) {
    slots_.emplace_back();
    next_.push_back(0);
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  while (slots_[hand_]->used) {
    slots_[hand_]->used = false;
    hand_ = (hand_ + 1) % wire::kMaxSignatures;
  }
  const uint32_t slot = hand_;
  hand_ = (hand_ + 1) % wire::kMaxSignatures;
  unlink(slot);
  slots_[slot]->slot = Signature::kNotOnWire;
  slots_[slot]->announced = false;
  return slot;
}

void SignatureTable::link(uint32_t slot) {
  uint32_t& head = buckets_[bucket_of(slots_[slot]->hash)];
  next_[slot] = head;
  head = slot + 1;
}

void SignatureTable::unlink(uint32_t slot) {
  uint32_t* at = &buckets_[bucket_of(slots_[slot]->hash)];
  while (*at != slot + 1)
    at = &next_[*at - 1];
  *at = next_[slot];
}

}  // namespace torch_remote::client
