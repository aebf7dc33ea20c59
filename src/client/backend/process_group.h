#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "client/backend/sent_work.h"
#include "client/backend/server_group.h"

namespace torch_remote::client {

// PyTorch's interface to collectives: `init_process_group("remote")`. Each collective is one call
// of an operator (marshal/schemas.h), which runs between the servers in the order of calls.
// Nothing waits but the opening, and the wait() of a barrier. Thread-safe.
class ProcessGroup : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // On the server of remote:`device`. Waits for the other ranks.
  ProcessGroup(c10d::Store& store, c10::DeviceIndex device, const GroupOptions& group);

  const std::string getBackendName() const override { return "remote"; }

  bool supportsCoalescing() const override { return true; }

  void startCoalescing() override {}

  WorkPtr endCoalescing() override;
  c10::intrusive_ptr<Options> getBackendOptions() override;

  void setSequenceNumberForGroup() override {}

  uint64_t getSequenceNumberForGroup() override { return 0; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  // All are on this group's server, and dense. Refuses others.
  void check(at::TensorList tensors) const;
  WorkPtr done(c10d::OpType type, Tensors results);

  const std::chrono::milliseconds timeout_;
  const c10::DeviceIndex device_;
  const std::shared_ptr<const ServerGroup> group_;
  const std::shared_ptr<Receives> receives_;
};

}  // namespace torch_remote::client
