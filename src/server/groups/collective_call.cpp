#include "server/groups/collective_call.h"

#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "marshal/schemas.h"

namespace torch_remote::server {
namespace {

using at::Tensor;

Tensor ordinary(const Tensor& tensor) {
  const c10::InferenceMode off(false);
  return at::empty({0}, tensor.options())
      .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

}  // namespace

using at::Tensor;
using at::TensorList;
using c10d::ReduceOp;
using marshal::Reduction;

int64_t Collective::check_rank(int64_t rank) const {
  require(rank >= 0 && rank < size(), "has no rank ", rank, ": the process group has ", size());
  return rank;
}

int64_t Collective::times_ranks(int64_t numel) const {
  int64_t all = 0;
  require(!__builtin_mul_overflow(numel, size(), &all), "gets ", numel, " elements for each of ",
          size(), " ranks, which are too many");
  return all;
}

void Collective::check_for_ranks(TensorList tensors) const {
  require(static_cast<int64_t>(tensors.size()) == size(), "gets ", tensors.size(), " tensors for ",
          size(), " ranks");
}

std::vector<int64_t> Collective::divide(TensorList tensors, at::IntArrayRef rows) const {
  std::vector<int64_t> parts;
  if (tensors.size() != 1) {
    check_for_ranks(tensors);
    int64_t all = 0;
    for (const Tensor& tensor : tensors) {
      parts.push_back(tensor.numel());
      require(!__builtin_add_overflow(all, tensor.numel(), &all), "gets too many elements");
    }
    return parts;
  }
  const Tensor& tensor = tensors[0];
  const int64_t all = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows.empty()) {
    require(all % size() == 0, "cannot divide ", all, " rows among ", size(), " ranks");
    return std::vector<int64_t>(static_cast<size_t>(size()), tensor.numel() / size());
  }
  require(static_cast<int64_t>(rows.size()) == size(), "gets ", rows.size(), " sizes for ", size(),
          " ranks");
  int64_t left = all;
  for (const int64_t count : rows) {
    require(count >= 0 && count <= left, "gets sizes that are not those of the tensor");
    left -= count;
    parts.push_back(count == 0 ? 0 : count * (tensor.numel() / all));
  }
  require(left == 0, "gets sizes that are not those of the tensor");
  return parts;
}

Reducing::Reducing(Collective& collective, int64_t number, const Tensor& tensor) {
  static constexpr ReduceOp::RedOpType kOps[] = {
      ReduceOp::SUM, ReduceOp::AVG,  ReduceOp::PRODUCT, ReduceOp::MIN,
      ReduceOp::MAX, ReduceOp::BAND, ReduceOp::BOR,     ReduceOp::BXOR,
  };
  require(number >= 0 && number < static_cast<int64_t>(std::size(kOps)), "has no reduction ",
          number);
  op = kOps[number];
  if (static_cast<Reduction>(number) != Reduction::kAverage ||
      collective.engine().getBackendName() != "gloo")
    return;
  require(tensor.is_floating_point() || tensor.is_complex(),
          "averages floating-point tensors only, and this one has ", tensor.scalar_type());
  op = ReduceOp::SUM;
  divisor = collective.size();
}

void Reducing::finish(Tensor& tensor) const {
  if (divisor != 1)
    tensor.div_(divisor);
}

void check_same(const Tensor& tensor, const Tensor& other, int64_t numel) {
  require(tensor.scalar_type() == other.scalar_type() && tensor.device() == other.device(),
          "gets tensors of ", tensor.scalar_type(), " on ", tensor.device(), " and of ",
          other.scalar_type(), " on ", other.device());
  require(tensor.numel() == numel, "gets a tensor with ", tensor.numel(), " elements where ", numel,
          " belong");
}

const Tensor& only(TensorList tensors) {
  require(tensors.size() == 1, "wants one tensor, not ", tensors.size());
  return tensors[0];
}

Tensor new_flat(int64_t numel, const Tensor& like) {
  const c10::InferenceMode off(false);
  return at::empty({numel}, like.options());
}

Tensor flat_input(const Tensor& tensor) {
  return ordinary(tensor.contiguous().view({-1}));
}

Tensor joined(at::TensorList tensors) {
  std::vector<Tensor> flat;
  for (const Tensor& tensor : tensors)
    flat.push_back(tensor.reshape({-1}));
  return ordinary(at::cat(flat));
}

void spread(const Tensor& flat, at::TensorList tensors) {
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

Target::Target(const Tensor& tensor)
    : tensor_(tensor), flat_(flat_input(tensor)), is_buffered_(!tensor.is_contiguous()) {}

void Target::finish() {
  if (is_buffered_)
    tensor_.copy_(flat_.view(tensor_.sizes()));
}

}  // namespace torch_remote::server
