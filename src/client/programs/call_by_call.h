#pragma once

#include <cstdint>
#include <vector>

#include "client/programs/recorded.h"
#include "client/session/submission.h"

namespace torch_remote::client {

// Makes recorded calls one by one, for a server that does not run programs. A temporary has a new
// name each time. A CALL may not make a storage that exists, so the storages that the last run made
// are freed before the next. Externally synchronised: by the submit lock.
class CallByCall {
 public:
  explicit CallByCall(const Recorded& recorded);

  // `recorded`: the same. Nothing of other threads comes between its calls.
  void submit(Submission& at, Recorded& recorded);

 private:
  // Where a storage stands in Recorded::slots.
  struct Mention {
    size_t begin = 0;
    size_t end = 0;
    uint32_t number = 0;
    uint64_t offset = 0;  // in elements
  };

  // What there is to a step but its bytes. Storages by their numbers.
  struct Step {
    std::vector<Mention> mentions;
    std::vector<uint32_t> outputs;
    std::vector<uint32_t> begun;  // temporaries that it is the first to use, and does not make
    std::vector<uint32_t> ended;  // temporaries that it is the last to use
  };

  void read_slots(const Recorded& recorded);
  void find_lives(const Recorded& recorded);

  void name_storages(Submission& at, const Recorded& recorded);
  void submit_call(Submission& at, Recorded& recorded, size_t index);
  void encode_slots(Submission& at, const Recorded& recorded, size_t index) const;
  void free_names(Submission& at, const std::vector<uint32_t>& numbers);

  std::vector<Step> steps_;
  std::vector<StorageRecord*> records_;  // by number; null: a temporary
  std::vector<uint64_t> names_;          // by number, in this submission
  std::vector<uint64_t> freed_;          // kept for its memory
};

}  // namespace torch_remote::client
