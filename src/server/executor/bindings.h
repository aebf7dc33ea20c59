#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "marshal/decode.h"
#include "server/device/devices.h"
#include "server/executor/call_plan.h"
#include "server/executor/generators.h"
#include "server/executor/storage_table.h"

namespace torch_remote::server {

// A plan has numbers for the storages, generators and fresh outputs of a call. This says which ones
// they are in the call that runs next, and makes tensors of them. Kept between calls, to save
// allocations. Confined to the executor thread.
class Bindings {
 public:
  Bindings(const Devices& devices, StorageTable& storages, Generators& generators)
      : devices_(devices), storages_(storages), generators_(generators) {}

  // By the client's names. The storages that the call makes are made; `made` is the call. Throws
  // ProtocolError. `slots` must live until the call has run.
  void bind(const marshal::Plan& plan, const marshal::Slots& slots, Origin made);
  // The same for the fresh outputs of a plan: makes their storages, when the call has run or is
  // known not to run.
  void bind_outputs(const marshal::Plan& plan, const marshal::Slots& slots, Origin made);

  // Without names: begin a call, then add its storages in the plan's order, then fresh outputs.
  void begin(c10::ArrayRef<uint64_t> generators) {
    entries_.clear();
    outputs_.clear();
    generator_names_ = generators;
  }

  void add(Entry& entry) { entries_.push_back(&entry); }

  void add_output(Entry& entry) { outputs_.push_back(&entry); }

  Entry& storage_of(const marshal::TensorRecipe& view) const { return *entries_[view.storage]; }

  c10::ArrayRef<Entry*> outputs() const { return outputs_; }

  // Call for all tensors of a plan before the first is made: it may move a storage, and all views
  // of it must see the same memory.
  void prepare(const marshal::Plan& plan);

  // Note [One resolve] in storage_table.h.
  at::Tensor resolve(const marshal::TensorRecipe& view, uint64_t offset) {
    return storages_.resolve(*entries_[view.storage], view, offset);
  }

  // Call before the operator runs: it may draw from the default generator of the plan's device.
  void find_generators(const CallPlan& call, c10::SmallVectorImpl<at::Generator>& found);

  // Drops the storages, so that they can be freed.
  void drop() {
    entries_.clear();
    outputs_.clear();
  }

 private:
  void make_outputs(const std::vector<wire::Output>& outputs, uint8_t device, Origin made,
                    const uint64_t*& name);

  const Devices& devices_;
  StorageTable& storages_;
  Generators& generators_;
  c10::SmallVector<Entry*, 16> entries_;  // of plan.storages
  c10::SmallVector<Entry*, 8> outputs_;   // of the fresh ones among plan.outputs
  c10::ArrayRef<uint64_t> generator_names_;
};

}  // namespace torch_remote::server
