#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "marshal/decode.h"
#include "server/call_log.h"
#include "server/devices.h"
#include "server/generators.h"
#include "server/operators.h"
#include "server/storage_table.h"
#include "wire/messages.h"

namespace torch_remote::server {

// A signature of the session's client.
struct CallPlan {
  marshal::Plan plan;
  const Operator* operation = nullptr;  // lives as long as the session
  uint64_t slot = 0;                    // where the client keeps it
};

// Runs calls. Confined to the executor thread, which is in inference mode.
//
// Note [Poison]
//
// An error belongs to the storages that a call would have written, and carries the first cause. A
// call that reads poison is skipped: the storages that it makes are poisoned with the same cause,
// the others keep their bytes. What a failing call itself writes is poisoned. Poison goes away when
// a storage is overwritten whole: by an upload, or as an output that the operator does not read.
class Executor {
 public:
  // Without a call log nothing is logged.
  Executor(const Devices& devices, StorageTable& storages, Generators& generators,
           CallLog* call_log)
      : devices_(devices), storages_(storages), generators_(generators), call_log_(call_log) {}

  // Throws ProtocolError and ConnectionError only: what the operator does wrong becomes poison.
  void call(const CallPlan& call, const marshal::Slots& slots);

  // The same for a call whose outputs the client could not predict: it is told, also how `out=`
  // tensors were resized. Fresh outputs get the names first, first + 1, … first + names - 1. On failure `failure` is set, and nothing has
  // been named.
  struct Answer {
    std::vector<wire::Result> results;
    Poison failure;
  };

  Answer query(const CallPlan& call, const marshal::Slots& slots, uint64_t first, uint64_t names);

  // Something outside a call failed, such as the memory for an upload. Remembered as a failing
  // call's is.
  Poison note_failure(std::exception_ptr cause, const std::string& what);

  // Why the last call has not done what it was to do: it failed, or read poison. Null: it has.
  const Poison& outcome() const { return outcome_; }

  // The client waits for the last call and raises its failure: what it was to write keeps its bytes, as locally. Of use
  // within the frame of the call.
  void forgive();

  // Storages may be freed now.
  void end_frame() { entries_.clear(); }

  // The first failure that no reply has told the client yet; null when there is none.
  Poison unreported() const { return unreported_; }

  void mark_reported(const Poison& poison) {
    if (poison == unreported_)
      unreported_.reset();
  }

  uint64_t calls() const { return calls_; }

  uint64_t failures() const { return failures_; }

  uint64_t mispredicted() const { return mispredicted_; }

 private:
  // The storages that the call mentions, by number; those that it makes are made.
  void meet_storages(const marshal::Plan& plan, const marshal::Slots& slots);
  Poison find_poison(const marshal::Plan& plan, const marshal::Slots& slots) const;
  // Null: the results are on the stack. What fails while the client waits is raised there as it would be locally, so
  // the tensors that it was to write are not poisoned.
  Poison run(const CallPlan& call, const marshal::Slots& slots, bool is_waited_for);
  void invoke(const CallPlan& call, const marshal::Slots& slots);
  void resolve_tensors(const marshal::Plan& plan, const marshal::Slots& slots);
  void find_generators(const CallPlan& call, const marshal::Slots& slots);
  void use_device(uint8_t device);
  void check_written(const CallPlan& call, const marshal::Slots& slots);
  void clear_poison(const marshal::Plan& plan, const marshal::Slots& slots);
  void poison_targets(const marshal::Plan& plan, const Poison& poison, bool only_fresh);
  // The failure of a call, noted as its outcome.
  Poison note_failure(std::exception_ptr cause, const CallPlan& call);
  Poison remember_failure(wire::Error failure);
  Poison fail(std::exception_ptr cause, const CallPlan& call, bool is_waited_for);

  void store_outputs(const CallPlan& call, const marshal::Slots& slots);
  void store_output(const CallPlan& call, const wire::Output& output, c10::IValue value,
                    const uint64_t*& name);
  void store_fresh(const CallPlan& call, const wire::Output& output, at::Tensor tensor,
                   uint64_t name);
  void poison_outputs(const CallPlan& call, const std::vector<wire::Output>& outputs,
                      const Poison& poison, const uint64_t*& name);
  std::vector<wire::Result> describe_results(uint64_t first, uint64_t names);

  const Devices& devices_;
  StorageTable& storages_;
  Generators& generators_;
  CallLog* const call_log_;
  int current_device_ = -1;
  uint64_t calls_ = 0;
  uint64_t failures_ = 0;
  uint64_t mispredicted_ = 0;
  Poison unreported_;
  Poison outcome_;

  // Of the call being run; kept so that running one allocates little.
  torch::jit::Stack stack_;
  c10::SmallVector<Entry*, 16> entries_;
  c10::SmallVector<at::Tensor, 16> tensors_;
  c10::SmallVector<at::Generator, 2> call_generators_;
  c10::SmallVector<std::pair<uint32_t, at::Tensor>, 4> written_;  // of plan.tensors
  std::vector<wire::Result> resized_;                             // of those, for the answer
  std::vector<const c10::TensorImpl*> arguments_;
};

}  // namespace torch_remote::server
