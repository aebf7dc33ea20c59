#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "client/capture/record.h"
#include "marshal/argument.h"
#include "marshal/pointer_index.h"
#include "wire/codec.h"
#include "wire/key.h"
#include "wire/slots.h"

namespace torch_remote::client {

// One tensor of a call: its storage and, in elements, its offset.
struct TensorSlot {
  StorageRecord* record;
  uint64_t offset;
  uint32_t numbers_before;  // bytes of Capture::numbers that precede it
  bool first_mention;
};

// The key and the slots of one call (wire/signature.h, wire/slots.h). Reused from call to call by
// one thread.
class Capture {
 public:
  // `operator_name` and `arguments` must outlive the call. `spans_devices`: tensors may be on
  // several devices of one server, and the call runs on the first tensor's device. `is_recorded`:
  // for a program, whose storages are there when it runs, so that the key makes none.
  void begin(uint32_t operator_id, const char* operator_name, uint8_t environment,
             c10::ArrayRef<c10::IValue> arguments, bool spans_devices = false,
             bool is_recorded = false);
  void add(const marshal::ArgumentInfo& info, const c10::IValue& value);
  void finish();

  void set_server_device(uint8_t device) { wire::set_key_device(key_, device_at_, device); }

  // Appends all slots but fresh outputs. Under the submit lock: names are sent as differences.
  void encode_slots(wire::Writer& writer, wire::NameState& names) const {
    encode_slots(writer, names, [](const StorageRecord& record) { return record.name; });
  }

  // The same with `name_of(record)` in place of names.
  template <typename NameOf>
  void encode_slots(wire::Writer& writer, wire::NameState& names, NameOf&& name_of) const {
    const auto numbers = numbers_.view();
    size_t written = 0;
    for (const TensorSlot& slot : tensors_) {
      if (slot.numbers_before != written) {
        wire::append_slots(writer, numbers.subspan(written, slot.numbers_before - written));
        written = slot.numbers_before;
      }
      if (slot.first_mention)
        wire::encode_storage_slot(writer, names, name_of(*slot.record), slot.offset);
      else
        wire::encode_offset(writer, slot.offset);
    }
    if (written != numbers.size())
      wire::append_slots(writer, numbers.subspan(written));
  }

  // False when another thread has announced one of the storages since the key was made.
  bool is_current() const;
  // After the call with this number was written, of this thread.
  void mark_announced(uint64_t call, uint64_t thread) const;

  std::span<const std::byte> key() const { return key_.view(); }

  const c10::SmallVectorImpl<TensorSlot>& tensors() const { return tensors_; }

  const c10::SmallVectorImpl<const at::TensorImpl*>& impls() const { return impls_; }

  // The sparse tensors; their parts are among impls().
  const c10::SmallVectorImpl<const at::TensorImpl*>& sparse() const { return sparse_; }

  // The remote device of all tensors and device arguments; -1 when there are none.
  c10::DeviceIndex device() const { return device_; }

  StorageRecord* any_record() const { return storages_.empty() ? nullptr : storages_.front(); }

  // A 0-dim CPU tensor was among the arguments.
  bool has_host_scalar() const { return has_host_scalar_; }

 private:
  void add_tensor(const at::Tensor& tensor, bool is_written);
  // True when the same tensor object is also an earlier argument.
  bool add_again(const at::TensorImpl& impl);
  void add_sparse(const at::Tensor& tensor);
  void add_generator(const at::Generator& generator);
  void add_host_scalar(const at::Tensor& tensor);
  void add_scalar(const c10::IValue& value, bool is_constant);
  void add_list(const marshal::ArgumentInfo& info, c10::ArrayRef<c10::IValue> items);
  void add_device(c10::Device device);

  void use_device(c10::DeviceIndex index) {
    if (C10_UNLIKELY(device_ != index))
      use_other_device(index);
  }

  void use_other_device(c10::DeviceIndex index);
  uint32_t storage_number(StorageRecord* record, bool& first_mention);
  [[noreturn]] void refuse_mix(c10::Device a, c10::Device b) const;
  // Refuses a call that came here only because of its generator, while its tensors are elsewhere.
  void check_generator_has_tensor(c10::DeviceType elsewhere) const;
  [[noreturn]] void refuse_limit(const char* what, uint64_t value, uint64_t limit) const;

  // Refuses what would make the server end the session.
  void check_limit(const char* what, uint64_t value, uint64_t limit) const {
    if (C10_UNLIKELY(value > limit))
      refuse_limit(what, value, limit);
  }

  wire::Writer key_;
  wire::Writer numbers_;
  c10::SmallVector<TensorSlot, 16> tensors_;
  c10::SmallVector<const at::TensorImpl*, 16> impls_;
  c10::SmallVector<const at::TensorImpl*, 2> sparse_;
  c10::SmallVector<StorageRecord*, 16> storages_;  // distinct, in order of first mention
  c10::SmallVector<uint64_t, 16> fresh_;           // 0: announced; else nbytes + 1
  marshal::PointerIndex storage_index_;
  marshal::PointerIndex impl_index_;
  size_t device_at_ = 0;
  c10::DeviceIndex device_ = -1;
  bool has_host_scalar_ = false;
  bool spans_devices_ = false;
  bool is_recorded_ = false;
  const char* operator_name_ = "";
  c10::ArrayRef<c10::IValue> arguments_;
};

}  // namespace torch_remote::client
