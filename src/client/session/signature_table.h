#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "wire/limits.h"
#include "wire/signature.h"

namespace torch_remote::client {

struct OperatorInfo;
struct OperatorMatch;

// What is the same in every call with one key: who it is, what comes out. Immutable but for its place on
// the wire; calls hold a reference, so replacement never pulls it from under them.
struct Signature : c10::intrusive_ptr_target {
  std::vector<std::byte> key;
  uint64_t hash = 0;
  const OperatorInfo* operation = nullptr;
  const OperatorMatch* match = nullptr;  // null: the server has the same operator
  bool outputs_known = false;
  bool shares_storage = false;  // what it writes does, with another argument: overlaps.h
  std::vector<wire::Output> outputs;
  std::vector<uint64_t> output_bytes;  // storage bytes of each fresh output, in order

  static constexpr uint32_t kNotOnWire = UINT32_MAX;
  uint32_t slot = kNotOnWire;  // under the submit lock
  bool announced = false;      // the server has it in that slot; under the submit lock
  bool used = false;           // since the clock hand passed; under the submit lock

  // The next call is waited for, so that it says itself when it fails: the last one that the user has heard of
  // has failed, or this is the first and find_overlaps() doubts it.
  std::atomic<bool> is_doubted{false};
};

using SignaturePtr = c10::intrusive_ptr<Signature>;

// The signatures both ends know, at most wire::kMaxSignatures; the client orders replacement by the clock
// algorithm. Externally synchronised: the session's submit lock.
class SignatureTable {
 public:
  // `buckets`: a power of two.
  explicit SignatureTable(size_t buckets = wire::kMaxSignatures * 2);

  // Null when there is none.
  SignaturePtr find(uint64_t hash, std::span<const std::byte> key);
  // Gives it a slot, in place of the one that was not used for longest if all are taken. If another thread
  // has added the same key meanwhile, that one is returned.
  SignaturePtr add(SignaturePtr signature);

  // The server says that a call of the signature in this slot has failed. Another may have taken the slot
  // meanwhile: then that one is waited for once, in vain.
  void mark_failed(uint64_t slot);

  // Puts `known` where the signature with the same key is, if it is still there.
  void replace(SignaturePtr known);

  // Of a session that is over: gives the memory back.
  void clear();

  uint32_t operators_introduced = 0;
  std::vector<uint32_t> wire_operators;  // by OperatorInfo::id: wire id + 1, 0 when not introduced

 private:
  size_t bucket_of(uint64_t hash) const { return hash & (buckets_.size() - 1); }

  void unlink(uint32_t slot);
  void link(uint32_t slot);
  uint32_t slot_to_use();

  std::vector<SignaturePtr> slots_;
  std::vector<uint32_t> buckets_;  // slot + 1, chained by next_
  std::vector<uint32_t> next_;
  uint32_t hand_ = 0;
};

}  // namespace torch_remote::client
