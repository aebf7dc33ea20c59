#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/GeneratorImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "base/mutex.h"

namespace torch_remote::client {

// A generator whose state is on the server.
class StateSource : public c10::GeneratorImpl {
 public:
  using c10::GeneratorImpl::GeneratorImpl;

  // The bytes of its state. Waits for the server.
  virtual std::vector<std::byte> read_snapshot() const = 0;
};

// Note [A generator's state]
//
// What torch.remote.get_rng_state() gives is a CPU byte tensor like any other device's, with one difference inside: its
// bytes are still on the server, as a generator that nobody draws from (a snapshot), until someone asks this tensor for its
// storage. Then they are fetched, once, and the snapshot is freed. fork_rng and torch.utils.checkpoint take a
// state and put it back without looking at it: they never wait (decision 0006).
//
// PyTorch reaches bytes through has_storage() and storage(), which are virtual so that backends can have such
// tensors. The few functions that go past them (`x.data = state`, resize_) find no storage and say so; none finds
// wrong bytes. Thread-safe.
class GeneratorState final : public c10::TensorImpl {
 public:
  GeneratorState(c10::intrusive_ptr<StateSource> snapshot, int64_t nbytes);
  // Of a device that is not there yet. Only its server knows how many bytes a state has, so asking
  // for the size fetches them too.
  explicit GeneratorState(c10::intrusive_ptr<StateSource> snapshot);

  bool has_storage() const override;
  const c10::Storage& storage() const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;

  // Null once the bytes are here: they may have been changed since.
  c10::intrusive_ptr<StateSource> snapshot() const;
  void fetch() const;

 protected:
  c10::IntArrayRef sizes_custom() const override;
  c10::SymIntArrayRef sym_sizes_custom() const override;
  int64_t numel_custom() const override;
  c10::SymInt sym_numel_custom() const override;

 private:
  void set_bytes(const c10::Storage& bytes) REQUIRES(mutex_);

  const bool is_sized_;  // from the beginning
  std::atomic<bool> mutable is_here_{false};
  Mutex mutable mutex_;
  c10::intrusive_ptr<StateSource> mutable snapshot_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
