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

class StateSource : public c10::GeneratorImpl {
 public:
  using c10::GeneratorImpl::GeneratorImpl;

  // The bytes of its state. Waits for the server.
  virtual std::vector<std::byte> read_snapshot() const = 0;
};

// Note [A generator's state]
//
// torch.remote.get_rng_state() returns a CPU byte tensor, as for other devices, but its bytes stay
// on the server, in a generator that nobody draws from (a snapshot), until its storage is asked
// for. Then they are fetched, once, and the snapshot is freed. fork_rng and torch.utils.checkpoint
// take a state and put it back without reading it, so they never wait (decision 0006).
//
// PyTorch reaches bytes through has_storage() and storage(), which are virtual for such tensors.
// The few functions that bypass them (`x.data = state`, resize_) find no storage and raise; none
// reads wrong bytes. Thread-safe.
class GeneratorState final : public c10::TensorImpl {
 public:
  GeneratorState(c10::intrusive_ptr<StateSource> snapshot, int64_t nbytes);
  // For a device that is not connected yet. Only its server knows the size of a state, so asking
  // for the size fetches the bytes too.
  explicit GeneratorState(c10::intrusive_ptr<StateSource> snapshot);

  bool has_storage() const override;
  const c10::Storage& storage() const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;

  // Null once the bytes are fetched: the user may have changed them.
  c10::intrusive_ptr<StateSource> snapshot() const;
  void fetch() const;

 protected:
  c10::IntArrayRef sizes_custom() const override;
  c10::SymIntArrayRef sym_sizes_custom() const override;
  int64_t numel_custom() const override;
  c10::SymInt sym_numel_custom() const override;

 private:
  void set_bytes(const c10::Storage& bytes) REQUIRES(mutex_);

  const bool is_sized_;  // known at construction
  std::atomic<bool> mutable is_here_{false};
  Mutex mutable mutex_;
  c10::intrusive_ptr<StateSource> mutable snapshot_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
