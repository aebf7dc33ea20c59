#pragma once

#include <cstdint>
#include <deque>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace torch_remote::server {

class Group;

// The copies that the process groups of a session send: their calls do not wait for the other
// ranks. Confined to the executor thread.
class Sends {
 public:
  // More than these wait until the oldest has arrived. Gloo tells only to a thread that waits
  // whether it has. One tensor alone may be larger.
  static constexpr size_t kMost = 64;
  static constexpr uint64_t kMostBytes = uint64_t{256} << 20;

  // Before a copy of so many bytes is made. Throws if the other rank has not taken an older one
  // within the timeout of the group.
  void make_room(uint64_t bytes);
  void add(const Group* group, c10::intrusive_ptr<c10d::Work> work, uint64_t bytes);
  // Waits for those of the group, for at most its timeout. Does not throw.
  void finish(const Group* group);

 private:
  struct Sending {
    const Group* group;
    c10::intrusive_ptr<c10d::Work> work;  // holds the copy
    uint64_t bytes;
  };

  std::deque<Sending> sending_;  // the oldest first
  uint64_t bytes_ = 0;
};

}  // namespace torch_remote::server
