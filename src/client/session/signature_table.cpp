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

SignaturePtr SignatureTable::add_known(SignaturePtr signature) {
  if (signature->slot != Signature::kNotOnWire)
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
  if (slot < slots_.size() && slots_[slot])
    slots_[slot]->is_doubted = true;
}

uint32_t SignatureTable::slot_to_use() {
  if (!free_slots_.empty()) {
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  if (slots_.size() < wire::kMaxSignatures) {
    slots_.emplace_back();
    next_.push_back(0);
    sizes_.push_back(0);
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  return give_up_next(Signature::kNotOnWire);
}

uint32_t SignatureTable::give_up_next(uint32_t kept) {
  const auto pass = [this] { hand_ = (hand_ + 1) % static_cast<uint32_t>(slots_.size()); };
  while (!slots_[hand_] || hand_ == kept || slots_[hand_]->used) {
    if (slots_[hand_] && hand_ != kept)
      slots_[hand_]->used = false;
    pass();
  }
  const uint32_t slot = hand_;
  pass();
  unlink(slot);
  slots_[slot]->slot = Signature::kNotOnWire;
  slots_[slot]->announced = false;
  return slot;
}

std::vector<uint32_t> SignatureTable::count_announced(uint32_t slot, uint64_t bytes) {
  bytes_ += bytes - sizes_[slot];
  sizes_[slot] = bytes;
  std::vector<uint32_t> given_up;
  while (bytes_ > most_bytes_ && bytes_ > sizes_[slot]) {  // some other slot has bytes
    const uint32_t other = give_up_next(slot);
    slots_[other].reset();
    bytes_ -= std::exchange(sizes_[other], 0);
    free_slots_.push_back(other);
    given_up.push_back(other);
  }
  return given_up;
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
