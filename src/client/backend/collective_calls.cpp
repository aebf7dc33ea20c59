#include "client/backend/collective_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "marshal/collectives.h"

namespace torch_remote::client::collectives {
namespace {

using at::IntArrayRef;
using at::Tensor;
using at::TensorList;
using marshal::Reduction;

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  marshal::define_collectives();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

template <typename Signature, typename... Arguments>
void call(const c10::TypedOperatorHandle<Signature>& operation, Arguments&&... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below;
  operation.call(std::forward<Arguments>(arguments)...);
}

}  // namespace

int64_t reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return static_cast<int64_t>(Reduction::kSum);
    case c10d::ReduceOp::AVG:
      return static_cast<int64_t>(Reduction::kAverage);
    case c10d::ReduceOp::PRODUCT:
      return static_cast<int64_t>(Reduction::kProduct);
    case c10d::ReduceOp::MIN:
      return static_cast<int64_t>(Reduction::kMinimum);
    case c10d::ReduceOp::MAX:
      return static_cast<int64_t>(Reduction::kMaximum);
    case c10d::ReduceOp::BAND:
      return static_cast<int64_t>(Reduction::kBitAnd);
    case c10d::ReduceOp::BOR:
      return static_cast<int64_t>(Reduction::kBitOr);
    case c10d::ReduceOp::BXOR:
      return static_cast<int64_t>(Reduction::kBitXor);
    default:
      break;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a process group of remote devices has no PREMUL_SUM");
}

void all_reduce_(int64_t group, TensorList tensors, int64_t op) {
  static const auto kOperator =
      find<void(int64_t, TensorList, int64_t)>("torch_remote::all_reduce_");
  call(kOperator, group, tensors, op);
}

void reduce_(int64_t group, TensorList tensors, int64_t op, int64_t root) {
  static const auto kOperator =
      find<void(int64_t, TensorList, int64_t, int64_t)>("torch_remote::reduce_");
  call(kOperator, group, tensors, op, root);
}

void broadcast_(int64_t group, TensorList tensors, int64_t root) {
  static const auto kOperator =
      find<void(int64_t, TensorList, int64_t)>("torch_remote::broadcast_");
  call(kOperator, group, tensors, root);
}

void all_gather(int64_t group, TensorList outputs, const Tensor& input) {
  static const auto kOperator =
      find<void(int64_t, TensorList, const Tensor&)>("torch_remote::all_gather");
  call(kOperator, group, outputs, input);
}

void reduce_scatter(int64_t group, const Tensor& output, TensorList inputs, int64_t op) {
  static const auto kOperator =
      find<void(int64_t, TensorList, TensorList, int64_t)>("torch_remote::reduce_scatter");
  call(kOperator, group, TensorList(output), inputs, op);
}

void gather(int64_t group, TensorList outputs, const Tensor& input, int64_t root) {
  static const auto kOperator =
      find<void(int64_t, TensorList, const Tensor&, int64_t)>("torch_remote::gather");
  call(kOperator, group, outputs, input, root);
}

void scatter(int64_t group, const Tensor& output, TensorList inputs, int64_t root) {
  static const auto kOperator =
      find<void(int64_t, TensorList, TensorList, int64_t)>("torch_remote::scatter");
  call(kOperator, group, TensorList(output), inputs, root);
}

void all_to_all(int64_t group, TensorList outputs, TensorList inputs, IntArrayRef output_sizes,
                IntArrayRef input_sizes) {
  static const auto kOperator =
      find<void(int64_t, TensorList, TensorList, IntArrayRef, IntArrayRef)>(
          "torch_remote::all_to_all");
  call(kOperator, group, outputs, inputs, output_sizes, input_sizes);
}

void send(int64_t group, const Tensor& tensor, int64_t peer, int64_t tag) {
  static const auto kOperator =
      find<void(int64_t, const Tensor&, int64_t, int64_t)>("torch_remote::send");
  call(kOperator, group, tensor, peer, tag);
}

void recv(int64_t group, const Tensor& tensor, int64_t peer, int64_t tag) {
  static const auto kOperator =
      find<void(int64_t, TensorList, int64_t, int64_t)>("torch_remote::recv");
  call(kOperator, group, TensorList(tensor), peer, tag);
}

}  // namespace torch_remote::client::collectives
