#include "client/backend/generator_state.h"

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include "client/process/errors.h"

namespace torch_remote::client {

GeneratorState::GeneratorState(c10::intrusive_ptr<StateSource> snapshot, int64_t nbytes)
    : c10::TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>(),
                      c10::Device(c10::kCPU)),
      is_sized_(true),
      snapshot_(std::move(snapshot)) {
  set_sizes_contiguous({nbytes});
}

GeneratorState::GeneratorState(c10::intrusive_ptr<StateSource> snapshot)
    : c10::TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>(),
                      c10::Device(c10::kCPU)),
      is_sized_(false),
      snapshot_(std::move(snapshot)) {
  set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
}

c10::intrusive_ptr<StateSource> GeneratorState::snapshot() const {
  MutexLock lock(mutex_);
  return snapshot_;
}

void GeneratorState::fetch() const {
  if (is_here_.load(std::memory_order_acquire))
    return;
  const KeepGil keep;  // the caller may hold a lock that PyTorch takes under the GIL
  const c10::intrusive_ptr<StateSource> source = snapshot();
  if (source == nullptr)
    return;  // another thread has fetched the bytes
  const std::vector<std::byte> bytes = source->read_snapshot();
  const auto count = static_cast<int64_t>(bytes.size());
  TORCH_CHECK(!is_sized_ || count == numel(), "the generator's state has ", count,
              " bytes on the server, and this process expects ", numel(),
              ": they have different versions of torch");
  at::Tensor tensor = at::detail::empty_cpu({count}, at::kByte, false, std::nullopt);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  c10::intrusive_ptr<StateSource> done;  // destroyed after the lock
  MutexLock lock(mutex_);
  if (snapshot_ == nullptr)
    return;
  const_cast<GeneratorState*>(this)->set_bytes(tensor.storage());  // NOLINT
  done = std::move(snapshot_);
  is_here_.store(true, std::memory_order_release);
}

void GeneratorState::set_bytes(const c10::Storage& bytes) {
  storage_ = bytes;
  numel_ = static_cast<int64_t>(bytes.nbytes());
  sizes_and_strides_.set_sizes({numel_});
}

c10::IntArrayRef GeneratorState::sizes_custom() const {
  fetch();
  return sizes_default();
}

c10::SymIntArrayRef GeneratorState::sym_sizes_custom() const {
  fetch();
  return sym_sizes_default();
}

int64_t GeneratorState::numel_custom() const {
  fetch();
  return numel_default();
}

c10::SymInt GeneratorState::sym_numel_custom() const {
  fetch();
  return numel_default();
}

bool GeneratorState::has_storage() const {
  fetch();
  return c10::TensorImpl::has_storage();
}

const c10::Storage& GeneratorState::storage() const {
  fetch();
  return c10::TensorImpl::storage();
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorState::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  fetch();
  return c10::TensorImpl::shallow_copy_and_detach(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorState::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
  fetch();
  return c10::TensorImpl::shallow_copy_and_detach(std::move(version_counter),
                                                  allow_tensor_metadata_change);
}

}  // namespace torch_remote::client
