#pragma once

#include <atomic>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "base/mutex.h"

namespace torch_remote::redirect {

// The states of two generators, as CPU byte tensors. `device` is undefined for the CPU's own state.
struct StateParts {
  at::Tensor cpu;
  at::Tensor device;
};

// Note [A joined state]
//
// Under the full policy most numbers of a program are drawn on the accelerator, and some on the
// CPU: by a DataLoader that shuffles, and by in-place functions of CPU tensors. So the state of
// torch's default generator, which a program believes to be the only one, is that of both: the
// bytes of the CPU's state, a mark, the length of the accelerator's state, and its bytes:
//
//   joined = cpu mark:8 length:u64 device[length]
//
// So nothing else that is longer than a state of the CPU is taken for one.
//
// The state of a remote device is fetched only when its bytes are read. A joined state keeps it so:
// the two parts are joined when somebody asks for the bytes or for their number. fork_rng and
// torch.utils.checkpoint never do, so they do not wait. Thread-safe.
//
// `x.data = state` copies the fields of a state without asking: set_data() in generators.cpp asks
// before. resize_ raises, because torch changes no sizes that are virtual; a clone can be resized.
class JoinedState final : public c10::TensorImpl {
 public:
  explicit JoinedState(StateParts parts);

  bool has_storage() const override;
  const c10::Storage& storage() const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

  // Undefined tensors once the parts are joined: the user may have changed the bytes.
  StateParts parts() const;

 protected:
  c10::IntArrayRef sizes_custom() const override;
  c10::SymIntArrayRef sym_sizes_custom() const override;
  int64_t numel_custom() const override;
  c10::SymInt sym_numel_custom() const override;

 private:
  void join() const;
  void set_bytes(const c10::Storage& bytes) REQUIRES(mutex_);

  std::atomic<bool> mutable is_joined_{false};
  Mutex mutable mutex_;
  StateParts mutable parts_ GUARDED_BY(mutex_);
};

// The parts of a state that the user gives back. Waits for a remote device only if the state's
// bytes were read before.
StateParts split_state(const at::Tensor& state);

}  // namespace torch_remote::redirect
