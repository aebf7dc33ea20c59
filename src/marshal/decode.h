#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "marshal/plan.h"
#include "wire/codec.h"
#include "wire/signature.h"
#include "wire/slots.h"

namespace torch_remote::marshal {

// A number of a call, or the bytes of a 0-dim tensor; the plan says which.
class Number {
 public:
  template <typename T>
  static Number of(const T& value) {
    static_assert(sizeof(T) <= kBytes);
    Number number;
    std::memcpy(number.bytes_.data(), &value, sizeof(T));
    return number;
  }

  static Number of_raw(std::span<const std::byte> bytes) {  // at most 16
    Number number;
    std::memcpy(number.bytes_.data(), bytes.data(), bytes.size());
    return number;
  }

  template <typename T>
  T as() const {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    return value;
  }

  const std::byte* data() const { return bytes_.data(); }

 private:
  static constexpr size_t kBytes = 16;
  std::array<std::byte, kBytes> bytes_{};
};

// What a call says that is neither in its plan nor a name.
struct Scalars {
  c10::SmallVector<uint64_t, 16> offsets;  // one for each tensor, in elements
  c10::SmallVector<Number, 8> numbers;
};

// The part of a call that is not in its plan. Reused, so that reading a call allocates nothing.
struct Slots : Scalars {
  c10::SmallVector<uint64_t, 16> storages;   // names, in the order in which the key numbers them
  c10::SmallVector<uint64_t, 2> generators;  // names
  c10::SmallVector<uint64_t, 8> outputs;     // names of the fresh outputs
};

// Reads the slots of one call (Note [Slots]). Throws ProtocolError; looks nothing up.
void read_slots(const Plan& plan, wire::Reader& reader, wire::NameState& names, Slots& slots);

// The tensors and generators of a call. `tensors` are those of plan.tensors, in order, and are
// moved from; `sparse` are those of plan.sparse, `generators` those of Slots::generators.
struct Resolved {
  std::span<at::Tensor> tensors;
  std::span<const at::Tensor> sparse;
  std::span<const at::Generator> generators;
};

// Puts the arguments on an empty stack. plan.refusal must be empty.
void build_stack(const Plan& plan, const Scalars& scalars, const Resolved& resolved,
                 torch::jit::Stack& stack);

}  // namespace torch_remote::marshal
