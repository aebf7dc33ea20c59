#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace torch_remote::client {

// The operators of marshal/collectives.h, each as a function that calls it on the servers' side of
// `group`. They return when the call is queued. As for c10d's own operators, autograd does not see
// what they write.
namespace collectives {

// The number of a reduction in a call. Raises for those that there are not.
int64_t reduction(const c10d::ReduceOp& op);

void all_reduce_(int64_t group, at::TensorList tensors, int64_t op);
void reduce_(int64_t group, at::TensorList tensors, int64_t op, int64_t root);
void broadcast_(int64_t group, at::TensorList tensors, int64_t root);
void all_gather(int64_t group, at::TensorList outputs, const at::Tensor& input);
void reduce_scatter(int64_t group, const at::Tensor& output, at::TensorList inputs, int64_t op);
void gather(int64_t group, at::TensorList outputs, const at::Tensor& input, int64_t root);
void scatter(int64_t group, const at::Tensor& output, at::TensorList inputs, int64_t root);
void all_to_all(int64_t group, at::TensorList outputs, at::TensorList inputs,
                at::IntArrayRef output_sizes, at::IntArrayRef input_sizes);
void send(int64_t group, const at::Tensor& tensor, int64_t peer, int64_t tag);
void recv(int64_t group, const at::Tensor& tensor, int64_t peer, int64_t tag);

}  // namespace collectives
}  // namespace torch_remote::client
