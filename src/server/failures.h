#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

#include "server/reply.h"
#include "wire/messages.h"

namespace torch_remote::server {

// A call that failed, or an upload or resize.
struct Failure : wire::Error {
  bool is_listed = false;  // Failures: nobody has been told yet
  uint64_t made = 0;       // StorageTable::made() when it failed
};

using Poison = std::shared_ptr<Failure>;

// The one that came first, where the other may be null.
inline const Poison& earlier(const Poison& a, const Poison& b) {
  if (a == nullptr || (b != nullptr && b->call < a->call))
    return b;
  return a;
}

// What stands in the way of a storage's value: Note [Poison] in server/execute.h.
class Taint {
 public:
  // The first cause; null: nothing does any more.
  Poison cause() const;

  bool is_skipped() const { return !skipped_.empty(); }

  void poison_with(const Poison& cause);  // keeps the one that is there
  void mark_skipped(const Poison& cause, uint64_t call);
  void forgive(const Poison& cause);  // the storage keeps its bytes after all
  void overwrite();                   // it has been overwritten whole

  // The bytes as they are, in case that a later call is skipped.
  void keep(c10::Storage bytes) { kept_ = std::move(bytes); }

  bool has_kept() const { return static_cast<bool>(kept_); }

  // What was kept, which is so no longer.
  c10::Storage take_kept() { return std::exchange(kept_, {}); }

  // Takes the marks of this cause away. False: there were none.
  bool heal(uint64_t cause);

  // What the failure with this number has done here, as a QUERY kTaints is answered.
  uint64_t answer(uint64_t cause) const;

  bool is_empty() const { return poison_ == nullptr && skipped_.empty() && !kept_; }

 private:
  struct Mark {
    Poison cause;
    uint64_t call;  // the first that was skipped for it
  };

  Poison poison_;              // an error in the place of the bytes
  std::vector<Mark> skipped_;  // why calls that were to write it have not run; not told yet
  c10::Storage kept_;
};

// Failures that the user has not been told of, oldest first. Confined to the executor thread.
class Failures {
 public:
  explicit Failures(Replies& replies) : replies_(replies) {}

  // A call has failed: the client hears of it at once, while it still knows whose line that was.
  void add(const Poison& cause);
  // Calls were skipped for it, which its user cannot know if it was told before.
  void list(const Poison& cause);
  void told(uint64_t cause);
  wire::Failures untold() const;

 private:
  Replies& replies_;
  std::deque<Poison> listed_;
  uint64_t beyond_ = 0;  // too many to list
};

}  // namespace torch_remote::server
