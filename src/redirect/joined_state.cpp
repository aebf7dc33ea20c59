#include "redirect/joined_state.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

namespace torch_remote::redirect {
namespace {

// Between the two states: Note [A joined state].
struct Middle {
  std::array<char, 8> mark = {'T', 'D', ' ', 'b', 'o', 't', 'h', '1'};
  uint64_t length = 0;
};

constexpr int64_t kMiddleBytes = sizeof(Middle);

at::Tensor make_bytes(int64_t count) {
  return at::detail::empty_cpu({count}, at::kByte, false, std::nullopt);
}

at::Tensor copy_bytes(const std::byte* source, int64_t count) {
  at::Tensor copy = make_bytes(count);
  std::memcpy(copy.mutable_data_ptr(), source, static_cast<size_t>(count));
  return copy;
}

int64_t cpu_state_bytes() {
  static const int64_t count = at::detail::createCPUGenerator().get_state().numel();
  return count;
}

// The length of the second part of these joined bytes; 0 if they are something else.
int64_t device_state_bytes(const std::byte* bytes, int64_t count, int64_t first) {
  if (count <= first + kMiddleBytes)
    return 0;
  Middle found;
  std::memcpy(&found, bytes + first, sizeof(Middle));
  const int64_t second = count - first - kMiddleBytes;
  return found.mark == Middle().mark && found.length == static_cast<uint64_t>(second) ? second : 0;
}

}  // namespace

JoinedState::JoinedState(StateParts parts)
    : c10::TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>(),
                      c10::Device(c10::kCPU)),
      parts_(std::move(parts)) {
  set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
}

StateParts JoinedState::parts() const {
  MutexLock lock(mutex_);
  return parts_;
}

void JoinedState::join() const {
  if (is_joined_.load(std::memory_order_acquire))
    return;
  const StateParts both = parts();
  if (!both.cpu.defined())
    return;  // another thread has joined them
  const auto first = static_cast<size_t>(both.cpu.numel());
  const auto second = static_cast<size_t>(both.device.numel());  // may wait for the server
  const at::Tensor bytes = make_bytes(static_cast<int64_t>(first + sizeof(Middle) + second));
  const Middle middle{.length = second};
  auto* const target = static_cast<std::byte*>(bytes.mutable_data_ptr());
  std::memcpy(target, both.cpu.const_data_ptr(), first);
  std::memcpy(target + first, &middle, sizeof(Middle));
  std::memcpy(target + first + sizeof(Middle), both.device.const_data_ptr(), second);
  StateParts done;  // destroyed after the lock
  MutexLock lock(mutex_);
  if (!parts_.cpu.defined())
    return;
  const_cast<JoinedState*>(this)->set_bytes(bytes.storage());  // NOLINT
  std::swap(done, parts_);
  is_joined_.store(true, std::memory_order_release);
}

void JoinedState::set_bytes(const c10::Storage& bytes) {
  storage_ = bytes;
  numel_ = static_cast<int64_t>(bytes.nbytes());
  sizes_and_strides_.set_sizes({numel_});
}

c10::IntArrayRef JoinedState::sizes_custom() const {
  join();
  return sizes_default();
}

c10::SymIntArrayRef JoinedState::sym_sizes_custom() const {
  join();
  return sym_sizes_default();
}

int64_t JoinedState::numel_custom() const {
  join();
  return numel_default();
}

c10::SymInt JoinedState::sym_numel_custom() const {
  join();
  return numel_default();
}

bool JoinedState::has_storage() const {
  join();
  return c10::TensorImpl::has_storage();
}

const c10::Storage& JoinedState::storage() const {
  join();
  return c10::TensorImpl::storage();
}

c10::intrusive_ptr<c10::TensorImpl> JoinedState::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  join();
  return c10::TensorImpl::shallow_copy_and_detach(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> JoinedState::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
  join();
  return c10::TensorImpl::shallow_copy_and_detach(std::move(version_counter),
                                                  allow_tensor_metadata_change);
}

// `state.data = x`
void JoinedState::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  join();  // else the parts would still be the state
  c10::TensorImpl::shallow_copy_from(impl);
}

StateParts split_state(const at::Tensor& state) {
  const auto* const joined = dynamic_cast<const JoinedState*>(state.unsafeGetTensorImpl());
  if (joined != nullptr) {
    StateParts parts = joined->parts();
    if (parts.cpu.defined())
      return parts;
  }
  const bool is_bytes = state.device().is_cpu() && state.scalar_type() == at::kByte &&
                        state.is_contiguous() && state.dim() == 1;
  const int64_t first = cpu_state_bytes();
  if (!is_bytes || state.numel() <= first)
    return {state, at::Tensor()};
  const auto* const bytes = static_cast<const std::byte*>(state.const_data_ptr());
  const int64_t second = device_state_bytes(bytes, state.numel(), first);
  if (second == 0)
    return {state, at::Tensor()};  // torch refuses it
  return {copy_bytes(bytes, first), copy_bytes(bytes + first + kMiddleBytes, second)};
}

}  // namespace torch_remote::redirect
