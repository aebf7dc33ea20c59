#include "client/backend/process_group.h"

#include <cstdint>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "marshal/schemas.h"

namespace torch_remote::client {
namespace {

using at::Tensor;
using at::TensorList;
using c10d::OpType;
using Tensors = ProcessGroup::Tensors;

// The operators of process groups (marshal/schemas.h), each as a function that calls it on the
// servers' side of `group`. They return when the call is queued. As for c10d's own operators,
// autograd does not see what they write.
namespace collectives {

using at::IntArrayRef;
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

// The number of a reduction in a call. Raises for those that there are not.
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

}  // namespace collectives

const Tensor& only(TensorList tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "expected one tensor, got ", tensors.size());
  return tensors[0];
}

const Tensors& only(const std::vector<Tensors>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "expected one list of tensors, got ", lists.size());
  return lists[0];
}

// The list of the root, or none.
Tensors at_root(const std::vector<Tensors>& lists) {
  return lists.empty() ? Tensors() : only(lists);
}

Tensors flattened(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists)
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

ProcessGroup::ProcessGroup(c10d::Store& store, c10::DeviceIndex device, const GroupOptions& group)
    : c10d::Backend(group.rank, group.size),
      timeout_(group.timeout),
      device_(device),
      group_(std::make_shared<const ServerGroup>(Machines::instance().place(device), store, group)),
      receives_(std::make_shared<Receives>([group = group_](const Receive& receive) {
        collectives::recv(group->name(), receive.tensor, receive.peer, receive.tag);
      })) {}

void ProcessGroup::check(TensorList tensors) const {
  for (const Tensor& tensor : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided,
                                "a process group of remote devices takes dense tensors only");
    const c10::DeviceIndex index = tensor.device().index();
    TORCH_CHECK_VALUE(tensor.is_privateuseone() &&
                          Machines::instance().place(index).session == &group_->session(),
                      "this process group is on the server of remote:", static_cast<int>(device_),
                      " and the tensor is on ", tensor.device(),
                      ": call torch.remote.set_device() before init_process_group()");
  }
}

ProcessGroup::WorkPtr ProcessGroup::done(OpType type, Tensors results) {
  return c10::make_intrusive<SentWork>(getRank(), type, std::move(results), receives_,
                                       receives_->last());
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroup::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), timeout_);
}

ProcessGroup::WorkPtr ProcessGroup::endCoalescing() {
  return done(OpType::COALESCED, {});
}

ProcessGroup::WorkPtr ProcessGroup::broadcast(Tensors& tensors,
                                              const c10d::BroadcastOptions& options) {
  check(tensors);
  collectives::broadcast_(group_->name(), tensors, options.rootRank);
  return done(OpType::BROADCAST, tensors);
}

ProcessGroup::WorkPtr ProcessGroup::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) {
  check(tensors);
  collectives::all_reduce_(group_->name(), tensors, collectives::reduction(options.reduceOp));
  return done(OpType::ALLREDUCE, tensors);
}

ProcessGroup::WorkPtr ProcessGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

ProcessGroup::WorkPtr ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check(tensors);
  collectives::reduce_(group_->name(), tensors, collectives::reduction(options.reduceOp),
                       options.rootRank);
  return done(OpType::REDUCE, tensors);
}

ProcessGroup::WorkPtr ProcessGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& /*options*/) {
  check(only(outputs));
  check(inputs);
  collectives::all_gather(group_->name(), only(outputs), only(inputs));
  return done(OpType::ALLGATHER, flattened(outputs));
}

ProcessGroup::WorkPtr ProcessGroup::_allgather_base(Tensor& output, Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroup::WorkPtr ProcessGroup::allgather_coalesced(std::vector<Tensors>& outputs,
                                                        Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  // outputs[rank][i], for inputs[i]
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> of_one(1);
    for (const Tensors& of_rank : outputs)
      of_one[0].push_back(of_rank.at(i));
    Tensors input{inputs[i]};
    allgather(of_one, input, options);
  }
  return done(OpType::ALLGATHER_COALESCED, flattened(outputs));
}

ProcessGroup::WorkPtr ProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& /*options*/) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "expected as many outputs as inputs");
  check(outputs);
  check(inputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    collectives::all_gather(group_->name(), TensorList(outputs[i]), inputs[i]);
  return done(OpType::_ALLGATHER_BASE, outputs);
}

ProcessGroup::WorkPtr ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& options) {
  const Tensors received = at_root(outputs);
  check(received);
  check(inputs);
  collectives::gather(group_->name(), received, only(inputs), options.rootRank);
  return done(OpType::GATHER, received);
}

ProcessGroup::WorkPtr ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ScatterOptions& options) {
  const Tensors sent = at_root(inputs);
  check(outputs);
  check(sent);
  collectives::scatter(group_->name(), only(outputs), sent, options.rootRank);
  return done(OpType::SCATTER, outputs);
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  check(outputs);
  check(only(inputs));
  collectives::reduce_scatter(group_->name(), only(outputs), only(inputs),
                              collectives::reduction(options.reduceOp));
  return done(OpType::REDUCE_SCATTER, outputs);
}

ProcessGroup::WorkPtr ProcessGroup::_reduce_scatter_base(
    Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "expected as many outputs as inputs");
  check(outputs);
  check(inputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    collectives::reduce_scatter(group_->name(), outputs[i], TensorList(inputs[i]),
                                collectives::reduction(options.reduceOp));
  return done(OpType::_REDUCE_SCATTER_BASE, outputs);
}

ProcessGroup::WorkPtr ProcessGroup::alltoall_base(Tensor& output, Tensor& input,
                                                  std::vector<int64_t>& output_sizes,
                                                  std::vector<int64_t>& input_sizes,
                                                  const c10d::AllToAllOptions& /*options*/) {
  check({output, input});
  collectives::all_to_all(group_->name(), TensorList(output), TensorList(input), output_sizes,
                          input_sizes);
  return done(OpType::ALLTOALL_BASE, {output});
}

ProcessGroup::WorkPtr ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllToAllOptions& /*options*/) {
  check(outputs);
  check(inputs);
  collectives::all_to_all(group_->name(), outputs, inputs, at::IntArrayRef(), at::IntArrayRef());
  return done(OpType::ALLTOALL, outputs);
}

ProcessGroup::WorkPtr ProcessGroup::send(Tensors& tensors, int peer, int tag) {
  check(tensors);
  collectives::send(group_->name(), only(tensors), peer, tag);
  return done(OpType::SEND, {});
}

ProcessGroup::WorkPtr ProcessGroup::recv(Tensors& tensors, int peer, int tag) {
  check(tensors);
  const uint64_t number = receives_->add({only(tensors), peer, tag});
  return c10::make_intrusive<SentWork>(getRank(), OpType::RECV, tensors, receives_, number);
}

ProcessGroup::WorkPtr ProcessGroup::barrier(const c10d::BarrierOptions& /*options*/) {
  const Tensor token = at::zeros({1}, at::TensorOptions(at::Device(at::kPrivateUse1, device_)));
  collectives::all_reduce_(group_->name(), TensorList(token),
                           collectives::reduction(c10d::ReduceOp::SUM));
  return c10::make_intrusive<BarrierWork>(getRank(), token, receives_);
}

}  // namespace torch_remote::client
