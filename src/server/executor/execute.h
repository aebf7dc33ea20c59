#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "marshal/decode.h"
#include "server/device/devices.h"
#include "server/executor/call_log.h"
#include "server/executor/call_profile.h"
#include "server/executor/failures.h"
#include "server/executor/generators.h"
#include "server/executor/storage_table.h"
#include "server/operators/operators.h"
#include "wire/messages.h"

namespace torch_remote::server {

struct CallPlan {
  marshal::Plan plan;
  const Operator* operation = nullptr;  // lives as long as the session
  uint64_t slot = 0;                    // the client's number for the signature
  uint64_t bytes = 0;                   // about how much memory this takes
};

// Runs calls. Confined to the executor thread, which is in inference mode.
//
// Note [Missing storages]
//
// A storage that a failed or discarded call should have made is missing: its entry has the cause
// and no value. A call that reads it, or writes a part of it, fails with that cause. Overwriting
// all of it gives it a value. Targets of a failed call keep what its kernel left, as locally.
// Targets of a discarded call keep their value; without one they are missing.
class Executor {
 public:
  // `call_log` may be null.
  Executor(const Devices& devices, StorageTable& storages, Generators& generators,
           StoppedThreads& threads, CallProfile& profile, CallLog* call_log)
      : devices_(devices),
        storages_(storages),
        generators_(generators),
        threads_(threads),
        profile_(profile),
        call_log_(call_log) {}

  // An operator's failure stops the client's thread. Throws ProtocolError and ConnectionError only.
  void call(const CallPlan& call, const marshal::Slots& slots);

  // The same for a call that the client waits for: returns why it did not run, or null. Stops
  // nothing.
  Cause checked_call(const CallPlan& call, const marshal::Slots& slots);

  // The same for a call whose outputs the client cannot predict: returns them, and the new sizes of
  // `out=` tensors. Fresh outputs get the names first … first + names - 1. If `failure` is set,
  // nothing has been named.
  struct Answer {
    std::vector<wire::Result> results;
    Cause failure;
  };

  Answer query(const CallPlan& call, const marshal::Slots& slots, uint64_t first, uint64_t names);

  // RESIZE and BEGIN, which have numbers like calls.
  void resize(const wire::Resize& message);
  // `put_in(entry)` writes the bytes to the storage, unless they are discarded.
  template <typename PutIn>
  void upload(uint64_t storage, uint64_t length, PutIn&& put_in);

  // For a message that has a number like a call and does nothing.
  void skip_number() { ++number_; }

  // Call when the devices have finished everything up to here.
  void note_good() { last_good_ = number_; }

  // Counts a lack of memory, and adds figures to its text.
  void note_shortage(wire::Error& failure, uint8_t device);
  // Sets the range of calls of which one has lost the device.
  void locate(wire::Error& lost) const;

  // Drops the last call's storages, so that they can be freed.
  void drop_storages() {
    entries_.clear();
    tensors_.clear();
    written_.clear();
    sparse_.clear();
  }

  uint64_t number() const { return number_; }

  uint64_t calls() const { return calls_; }

  uint64_t failures() const { return failed_; }

  uint64_t mispredicted() const { return mispredicted_; }

 private:
  // Counts the failure and, if nobody waits for the call, stops its thread.
  Cause cause_of(wire::Error failure);

  // The message that is being applied.
  Origin here() const { return {threads_.current(), number_}; }

  // The storages that the call mentions, by number; those that it makes are made.
  void find_storages(const marshal::Plan& plan, const marshal::Slots& slots);
  // The cause of a missing storage that the call needs; null if none is missing.
  Cause find_missing(const marshal::Plan& plan, const marshal::Slots& slots) const;
  // Runs the call, unless its thread is stopped or a storage is missing. Null: the results are on
  // the stack. Otherwise the cause, and the thread is stopped unless the client waits for the call.
  Cause run(const CallPlan& call, const marshal::Slots& slots, bool is_waited_for);
  // True if the call reads no tensor, draws no random number and writes only storages that are
  // newer than the stop of its thread. A stopped thread's call is then run.
  bool is_constant(const CallPlan& call, const marshal::Slots& slots) const;
  void invoke(const CallPlan& call, const marshal::Slots& slots);
  void resolve_tensors(const marshal::Plan& plan, const marshal::Slots& slots);
  void make_sparse_tensors(const marshal::Plan& plan);
  // The kernel must not change indices between their check and their use.
  void check_index_storages(const marshal::Plan& plan) const;
  void find_generators(const CallPlan& call, const marshal::Slots& slots);
  void use_device(uint8_t device);
  // Puts the written tensors that the kernel has resized into `resized_`.
  void check_written(const CallPlan& call, const marshal::Slots& slots);
  // Puts the written sparse tensors whose sizes or parts the kernel has changed into `rewritten_`.
  void check_written_sparse(const CallPlan& call);
  void note_overwritten(const marshal::Plan& plan, const marshal::Slots& slots);
  // For a call of a stopped thread: what it should have made is missing.
  void discard(const marshal::Plan& plan, const Cause& cause);
  // Handles the failure of the call that ran last.
  Cause fail(std::exception_ptr cause, const CallPlan& call, const marshal::Slots& slots);
  // Handles the failure of a RESIZE or BEGIN. `has_lost_it`: the storage's value is lost.
  void fail_resize_or_upload(std::exception_ptr cause, const char* what, Entry& entry,
                             bool has_lost_it);
  Cause stop(wire::Error failure);

  Cause run_known(const CallPlan& call, const marshal::Slots& slots, bool is_waited_for);
  Cause store_outputs(const CallPlan& call, const marshal::Slots& slots);
  void store_output(const CallPlan& call, const wire::Output& output, c10::IValue value,
                    const uint64_t*& name, std::exception_ptr& refusal);
  void store_fresh(const CallPlan& call, const wire::Output& output, at::Tensor tensor,
                   uint64_t name, std::exception_ptr& refusal);
  void make_missing(const CallPlan& call, const std::vector<wire::Output>& outputs,
                    const Cause& cause, const uint64_t*& name);
  std::vector<wire::Result> describe_results(c10::Device device, uint64_t first, uint64_t names);
  void describe_rewritten(c10::Device device, std::vector<at::Tensor>& fresh);

  const Devices& devices_;
  StorageTable& storages_;
  Generators& generators_;
  StoppedThreads& threads_;
  CallProfile& profile_;
  CallLog* const call_log_;
  int current_device_ = -1;
  uint64_t calls_ = 0;
  uint64_t failed_ = 0;
  uint64_t number_ = 0;  // Note [Numbers of calls] in wire/messages.h
  bool is_waited_for_ = false;
  uint64_t last_good_ = 0;
  const Operator* last_operation_ = nullptr;
  uint64_t mispredicted_ = 0;

  // State of the current call, kept to save allocations.
  torch::jit::Stack stack_;
  c10::SmallVector<Entry*, 16> entries_;
  c10::SmallVector<at::Tensor, 16> tensors_;
  std::vector<at::Tensor> sparse_;  // of plan.sparse
  c10::SmallVector<at::Generator, 2> call_generators_;
  c10::SmallVector<std::pair<uint32_t, at::Tensor>, 4> written_;  // index in plan.tensors
  std::vector<wire::Result> resized_;                             // of written_, for the answer
  std::vector<uint32_t> rewritten_;                               // index in plan.sparse
  std::vector<const c10::TensorImpl*> arguments_;
};

template <typename PutIn>
void Executor::upload(uint64_t storage, uint64_t length, PutIn&& put_in) {
  ++number_;
  Entry& entry = storages_.find(storage);
  if (threads_.cause() != nullptr &&
      (!threads_.is_made_since(entry.made) || entry.missing != nullptr))
    return;
  try {
    if (entry.missing != nullptr && length != entry.nbytes) {
      stop(*entry.missing);
      return;
    }
    put_in(entry);
    storages_.set_missing(entry, nullptr);
  } catch (...) {
    fail_resize_or_upload(std::current_exception(), "upload", entry, false);
  }
}

}  // namespace torch_remote::server
