#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "server/executor/storage_table.h"
#include "server/groups/groups.h"

namespace torch_remote::server {

// What the kernels of collectives check before an engine sees anything.

template <typename... Words>
void require(bool is_so, const Words&... words) {
  if (!is_so)
    throw Refused(c10::str(words...));
}

// One call: its group and engine. Throws Refused.
class Collective {
 public:
  explicit Collective(int64_t group)
      : group_(Groups::current().find(group)), engine_(group_.engine()) {}

  c10d::Backend& engine() { return engine_; }

  Group& group() { return group_; }

  int64_t size() const { return engine_.getSize(); }

  bool is_at(int64_t rank) const { return engine_.getRank() == rank; }

  // Gives the rank, if there is one.
  int64_t check_rank(int64_t rank) const;
  // So many elements from each rank. Throws if there is no such number.
  int64_t times_ranks(int64_t numel) const;
  // One tensor for each rank.
  void check_for_ranks(at::TensorList tensors) const;
  // How many elements go to, or come from, each rank. `rows` divides the first dimension of a
  // single tensor; without it, evenly.
  std::vector<int64_t> divide(at::TensorList tensors, at::IntArrayRef rows) const;

 private:
  Group& group_;
  c10d::Backend& engine_;
};

// A reduction as an engine is asked for it. Gloo has no average: that is the sum, which finish()
// divides by the number of ranks.
struct Reducing {
  c10d::ReduceOp op;
  int64_t divisor = 1;

  // `op` is a marshal::Reduction, from the wire.
  Reducing(Collective& collective, int64_t op, const at::Tensor& tensor);
  void finish(at::Tensor& tensor) const;
};

// The tensor has the dtype and device of the other, and so many elements.
void check_same(const at::Tensor& tensor, const at::Tensor& other, int64_t numel);
const at::Tensor& only(at::TensorList tensors);

// Tensors that are passed to an engine of collectives. The engine's threads are in no inference
// mode and may not write the tensors of a session: these are other tensors, mostly over the same
// memory.

at::Tensor new_flat(int64_t numel, const at::Tensor& like);
// All elements in one dimension, contiguous in memory. Copies the tensor if it is not contiguous.
at::Tensor flat_input(const at::Tensor& tensor);
// A copy of the elements of all tensors, one tensor after another, in one dimension.
at::Tensor joined(at::TensorList tensors);
// Copies the parts of `flat`, one after another, into the tensors.
void spread(const at::Tensor& flat, at::TensorList tensors);

// A tensor that an engine writes. If it is not contiguous, the engine writes a buffer, and finish()
// copies the buffer into the tensor.
class Target {
 public:
  explicit Target(const at::Tensor& tensor);

  at::Tensor& flat() { return flat_; }

  void finish();

 private:
  at::Tensor tensor_;
  at::Tensor flat_;
  bool is_buffered_;
};

}  // namespace torch_remote::server
