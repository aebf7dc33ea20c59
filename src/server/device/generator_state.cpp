#include "server/device/generator_state.h"

#include <array>
#include <cstdint>
#include <cstring>

#include <ATen/core/MT19937RNGEngine.h>

namespace torch_remote::server {
namespace {

// Note [States of a CPU generator]
//
// The bytes of CPUGeneratorImpl::get_state() are these two structures, and those that an older
// torch has saved the first alone (ATen/CPUGeneratorImpl.cpp, which does not export them). A draw
// of mt19937 is
//
//   if (--left == 0) { compute all 624 numbers; left = 624; next = 0; }
//   return state[next++];
//
// so that left - 1 numbers are read from `next` on before they are computed anew: next + left must
// be at most 625, unless left is 1. A generator that was drawn from has next + left = 625.
struct LegacyState {
  uint64_t seed;
  int32_t left;
  int32_t seeded;
  uint64_t next;
  std::array<uint64_t, at::MERSENNE_STATE_N> state;
  double normal_x;
  double normal_y;
  double normal_rho;
  int32_t has_normal;
};

struct State {
  LegacyState legacy;
  float next_float_normal;
  uint8_t has_float_normal;  // a bool there: another value has no meaning
};

static_assert(sizeof(LegacyState) == 5048 && sizeof(State) == 5056);

bool is_flag(int64_t value) noexcept {
  return value == 0 || value == 1;
}

}  // namespace

bool is_safe_cpu_state(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() != sizeof(LegacyState) && bytes.size() != sizeof(State))
    return false;
  State state{};
  std::memcpy(&state, bytes.data(), bytes.size());
  const LegacyState& legacy = state.legacy;
  constexpr auto kNumbers = static_cast<uint64_t>(at::MERSENNE_STATE_N);
  if (legacy.left < 1 || static_cast<uint64_t>(legacy.left) > kNumbers || legacy.next > kNumbers)
    return false;
  const bool stays_inside =
      legacy.left == 1 || legacy.next + static_cast<uint64_t>(legacy.left) <= kNumbers + 1;
  return stays_inside && legacy.seeded == 1 && is_flag(legacy.has_normal) &&
         is_flag(state.has_float_normal);
}

}  // namespace torch_remote::server
