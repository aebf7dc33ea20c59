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

// What all calls with one key have in common. Immutable but for its index. Calls hold a reference,
// so replacing it in the table is safe.
struct Signature : c10::intrusive_ptr_target {
  std::vector<std::byte> key;
  uint64_t hash = 0;
  const OperatorInfo* operation = nullptr;
  const OperatorMatch* match = nullptr;  // null: the server has the same operator
  bool outputs_known = false;
  bool shares_storage = false;  // a written tensor shares it with another argument: overlaps.h
  std::vector<wire::Output> outputs;
  std::vector<uint64_t> output_bytes;  // bytes of each fresh storage, in order

  static constexpr uint32_t kNotOnWire = UINT32_MAX;
  uint32_t index = kNotOnWire;  // under the submit lock
  bool announced = false;       // the server has it at that index; under the submit lock
  bool used = false;            // since the clock hand passed it; under the submit lock

  // The next call is waited for, so that it raises its own failure: the last failure of this
  // signature was told, or it is new and find_overlaps() doubts it.
  std::atomic<bool> is_doubted{false};
};

using SignaturePtr = c10::intrusive_ptr<Signature>;

// Limit for the bytes of the SIGNATURE messages that the server keeps. A server's form of one byte
// takes some hundred at worst: kMaxSignatureMemory of the server.
constexpr uint64_t kMaxSignatureTableBytes = uint64_t{16} << 20;

// The signatures that both ends know, at most wire::kMaxSignatures. The client replaces them by the
// clock algorithm. Externally synchronised: by the submit lock.
class SignatureTable {
 public:
  // `buckets`: a power of two. `bytes`: more than that gives up signatures.
  explicit SignatureTable(size_t buckets = wire::kMaxSignatures * 2,
                          uint64_t bytes = kMaxSignatureTableBytes);

  // Null if there is none.
  SignaturePtr find(uint64_t hash, std::span<const std::byte> key);
  // Gives it an index, if need be that of the least recently used. If another thread has added the
  // same key, returns that one.
  SignaturePtr add(SignaturePtr signature);
  // The same for one whose outputs are known; one with the same key whose outputs are not is
  // replaced.
  SignaturePtr add_known(SignaturePtr signature);

  // The server gets the signature at this index, with a message of so many bytes. Returns the
  // indices of signatures that were given up for it: the server is to keep nothing there.
  std::vector<uint32_t> count_announced(uint32_t index, uint64_t bytes);

  // A call of the signature at this index has failed. If another has taken the index since, a call
  // of that one is waited for once, without need.
  void mark_failed(uint64_t index);

  // Replaces the signature with the same key, if it is still there.
  void replace(SignaturePtr known);

  // For a session that has ended: frees the memory.
  void clear();

  uint32_t operators_introduced = 0;
  std::vector<uint32_t> wire_operators;  // by OperatorInfo::id: wire id + 1, 0 when not introduced

 private:
  size_t bucket_of(uint64_t hash) const { return hash & (buckets_.size() - 1); }

  void unlink(uint32_t index);
  void link(uint32_t index);
  uint32_t index_to_use();
  // The index of the next signature that is not in use, which loses it.
  uint32_t give_up_next(uint32_t kept);

  uint64_t most_bytes_;
  uint64_t bytes_ = 0;                    // of the messages of all signatures
  std::vector<SignaturePtr> signatures_;  // null: given up
  std::vector<uint64_t> sizes_;           // of the messages, by index
  std::vector<uint32_t> free_indices_;    // of those given up
  std::vector<uint32_t> buckets_;         // index + 1, chained by next_
  std::vector<uint32_t> next_;
  uint32_t hand_ = 0;
};

}  // namespace torch_remote::client
