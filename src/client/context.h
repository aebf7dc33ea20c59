#pragma once

#include <array>
#include <cstdint>

#include "wire/messages.h"

namespace torch_remote::client {

// Process-wide settings that change results, as numbers in the order of wire::Setting (index 0 unused).
using ContextValues = std::array<int16_t, wire::kMaxSetting + 1>;

// Differs from every real context: the first call tells the server everything.
inline ContextValues unsent_context() {
  ContextValues values;
  values.fill(-1);
  values[0] = 0;
  return values;
}

// What they are now. Some tens of nanoseconds: it is looked at before each call.
ContextValues read_context();

// What of the context decides metadata: default dtype, deterministic, fill. Part of every key.
uint8_t read_environment();
constexpr uint8_t kGradModeBit = 128;  // set for operators that look at it (wire/signature.h)

// The settings in which `now` differs from `before`.
wire::Context difference(const ContextValues& before, const ContextValues& now);

}  // namespace torch_remote::client
