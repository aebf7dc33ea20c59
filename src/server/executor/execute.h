#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "server/executor/bindings.h"
#include "server/executor/call_plan.h"
#include "server/executor/failures.h"
#include "server/executor/plan_run.h"
#include "server/executor/program.h"
#include "server/executor/storage_table.h"
#include "wire/messages.h"
#include "wire/warning.h"

namespace torch_remote::server {

// Runs the calls of the client's threads: finds what they name, runs them (PlanRun), and names
// their results, or says what is missing (Note [Fail-stop] in wire/messages.h). Confined to the
// executor thread, which is in inference mode.
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
        threads_(threads),
        bindings_(devices, storages, generators),
        run_(devices, storages, profile, call_log),
        program_storages_(devices, storages) {}

  // An operator's failure stops the client's thread. Throws ProtocolError and ConnectionError only.
  void call(const CallPlan& signature, const marshal::Slots& slots);

  // The same for a call that the client waits for: returns why it did not run, or null. Stops
  // nothing.
  Cause checked_call(const CallPlan& signature, const marshal::Slots& slots);

  // The same for a call whose outputs the client cannot predict: returns them, and the new sizes of
  // `out=` tensors. Fresh outputs get the names first … first + names - 1. If `failure` is set,
  // nothing has been named.
  struct Answer {
    std::vector<wire::Result> results;
    Cause failure;
  };

  Answer query(const CallPlan& signature, const marshal::Slots& slots, uint64_t first,
               uint64_t names);

  // RUN. The step that fails stops the client's thread, as the failure of a call does.
  void run(const Program& program);

  // Note [Cancelled calls] in wire/messages.h. From any thread.
  void cancel_to(uint64_t call) {
    uint64_t before = cancelled_.load(std::memory_order_relaxed);
    while (before < call && !cancelled_.compare_exchange_weak(before, call))
      continue;
  }

  // RESIZE, BEGIN and FILL, which have numbers like calls.
  void resize(const wire::Resize& message);
  // `put_in(entry)` writes the bytes to the storage, unless they are discarded. `what` stands in
  // the place of an operator's name in the error.
  template <typename PutIn>
  void upload(uint64_t storage, uint64_t length, PutIn&& put_in, const char* what = "upload");

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
    bindings_.drop();
    run_.drop_tensors();
  }

  uint64_t number() const { return number_; }

  // The call or step that runs, or ran last; the rest of the warning is empty.
  wire::Warning running() const;

  uint64_t calls() const { return run_.calls(); }

  uint64_t failures() const { return failed_; }

  uint64_t mispredicted() const { return run_.mispredicted(); }

 private:
  // A message that is a call.
  struct Call {
    const CallPlan& signature;
    const marshal::Slots& slots;
    bool is_waited_for;  // its failure stops no thread
  };

  // The message that is being applied.
  Origin here() const { return {threads_.current(), number_}; }

  // Runs the call, unless its thread is stopped or a storage is missing. Null: run_ has the
  // results. Otherwise the cause, and the thread is stopped unless the client waits for the call.
  Cause run(const Call& call);
  Cause run_known(const Call& call);

  bool is_cancelled() const { return number_ <= cancelled_.load(std::memory_order_relaxed); }

  // For a call or run that does not begin.
  Cause fail_cancelled(std::string what, bool is_waited_for);
  // For what a queried call has made. Throws Refused, and then has named nothing.
  void name_fresh(std::vector<at::Tensor> fresh, c10::Device device, uint64_t first,
                  uint64_t names);

  // The cause of a missing storage that the call needs; null if none is missing.
  Cause find_missing(const Call& call) const;
  void note_overwritten(const Call& call);
  // True if the call reads no tensor, draws no random number and writes only storages that are
  // newer than the stop of its thread. A stopped thread's call is then run.
  bool is_constant(const Call& call) const;

  // Whether the call gives the whole storage a new value.
  static bool overwrites(const Entry& entry, const marshal::TensorRecipe& view, uint64_t offset) {
    return !view.is_read && covers(entry, view, offset);
  }

  // --- the same for a run of a program: server/executor/run_program.cpp
  void run_step(const Program& program, const ProgramStep& step);
  Cause find_missing(const Program& program);
  void discard(const Program& program, const Cause& cause);
  void fail(std::exception_ptr cause, const Program& program, size_t at);
  // What the program makes is missing.
  void lose_made(const Program& program, const Cause& cause);

  // For a call of a stopped thread: what it should have made is missing.
  void discard(const marshal::Plan& plan, const Cause& cause);
  // Of what the call writes. In a local program storages that are older than the error would have
  // no value either; those of cancelled calls are missing all the same.
  void discard(Entry& entry, const Cause& cause);
  // Handles the failure of the call that ran last.
  Cause fail(std::exception_ptr cause, const Call& call);
  // Handles the failure of a RESIZE, BEGIN or FILL. `has_lost_it`: the storage's value is lost.
  void fail_resize_or_upload(std::exception_ptr cause, const char* what, Entry& entry,
                             bool has_lost_it);
  // Counts the failure and, if nobody waits for the call, stops its thread.
  Cause cause_of(wire::Error failure, bool is_waited_for);
  Cause stop(wire::Error failure);

  const Devices& devices_;
  StorageTable& storages_;
  StoppedThreads& threads_;
  Bindings bindings_;
  PlanRun run_;
  ProgramStorages program_storages_;  // of the run that is made
  uint64_t failed_ = 0;
  uint64_t number_ = 0;  // Note [Numbers of calls] in wire/messages.h
  uint64_t last_good_ = 0;
  std::atomic<uint64_t> cancelled_{0};  // the last call of CANCEL
  const Operator* last_operation_ = nullptr;
  uint64_t program_ = 0;  // that runs, and its step
  size_t step_ = 0;
};

template <typename PutIn>
void Executor::upload(uint64_t storage, uint64_t length, PutIn&& put_in, const char* what) {
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
    storages_.missing().clear(entry);
  } catch (...) {
    fail_resize_or_upload(std::current_exception(), what, entry, false);
  }
}

}  // namespace torch_remote::server
