#pragma once

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "marshal/decode.h"
#include "server/device/devices.h"
#include "server/executor/bindings.h"
#include "server/executor/call_log.h"
#include "server/executor/call_plan.h"
#include "server/executor/call_profile.h"
#include "server/executor/storage_table.h"
#include "wire/messages.h"

namespace torch_remote::server {

// Runs one plan after another over bindings. Knows no names, no stopped threads and nothing that is
// missing: what goes wrong is thrown. Kept between calls, to save allocations. Confined to the
// executor thread, which is in inference mode.
class PlanRun {
 public:
  // `call_log` may be null.
  PlanRun(const Devices& devices, StorageTable& storages, CallProfile& profile, CallLog* call_log)
      : devices_(devices), storages_(storages), profile_(profile), call_log_(call_log) {}

  // Calls the operator and checks what it has written; `number` is the call in the profile. Throws
  // Refused, and what the operator throws. Afterwards store() or describe() takes the results.
  void run(const CallPlan& call, const marshal::Scalars& scalars, Bindings& bindings,
           uint64_t number);

  // For outputs that are known: puts the fresh ones into the storages bindings.outputs(). If some
  // cannot be stored, throws the error of the first after all others are stored.
  void store(const CallPlan& call, const Bindings& bindings);

  // For outputs that are not known: what came out, and how written tensors have changed. Throws
  // Refused.
  struct Results {
    std::vector<wire::Result> results;
    std::vector<at::Tensor> fresh;  // in the order of `results`, ready for StorageTable::adopt
  };

  Results describe(const CallPlan& call);

  // Drops the results. Call when run(), store() or describe() has thrown.
  void drop_results() {
    stack_.clear();
    written_.clear();
  }

  // Drops the last call's tensors, so that their storages can be freed.
  void drop_tensors() {
    tensors_.clear();
    written_.clear();
    sparse_.clear();
  }

  // How many plans have been run, with those that failed.
  uint64_t calls() const { return calls_; }

  // How many results were not as the client had predicted.
  uint64_t mispredicted() const { return mispredicted_; }

 private:
  void invoke(const CallPlan& call, const marshal::Scalars& scalars, Bindings& bindings,
              uint64_t number);
  void use_device(uint8_t device);
  void resolve_tensors(const marshal::Plan& plan, const marshal::Scalars& scalars,
                       Bindings& bindings);
  void make_sparse_tensors(const marshal::Plan& plan, const Bindings& bindings);
  // Puts the written tensors that the kernel has resized into `resized_`.
  void check_written(const CallPlan& call, const marshal::Scalars& scalars,
                     const Bindings& bindings);
  // Puts the written sparse tensors whose sizes or parts the kernel has changed into `rewritten_`.
  void check_written_sparse(const CallPlan& call);
  void describe_rewritten(c10::Device device, std::vector<at::Tensor>& fresh);

  // Where store() is.
  struct Storing {
    const CallPlan& call;
    Entry* const* next;          // of bindings.outputs()
    std::exception_ptr refusal;  // of the first that could not be stored
  };

  void store_output(const wire::Output& output, c10::IValue value, Storing& storing);
  void store_fresh(const wire::Output& output, at::Tensor tensor, Entry& entry, Storing& storing);

  const Devices& devices_;
  StorageTable& storages_;
  CallProfile& profile_;
  CallLog* const call_log_;
  int current_device_ = -1;
  uint64_t calls_ = 0;
  uint64_t mispredicted_ = 0;

  // Of the plan that runs.
  torch::jit::Stack stack_;
  c10::SmallVector<at::Tensor, 16> tensors_;  // of plan.tensors; undefined where on the stack
  std::vector<at::Tensor> sparse_;            // of plan.sparse
  c10::SmallVector<at::Generator, 2> generators_;
  std::vector<const c10::TensorImpl*> arguments_;  // of tensors_, if the outputs are not known
  c10::SmallVector<std::pair<uint32_t, at::Tensor>, 4> written_;  // index in plan.tensors
  std::vector<wire::Result> resized_;                             // of written_, for describe()
  std::vector<uint32_t> rewritten_;                               // index in plan.sparse
};

}  // namespace torch_remote::server
