#include "server/executor/generators.h"

#include <array>
#include <cstdint>
#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

at::Tensor to_tensor(std::span<const std::byte> bytes) {
  at::Tensor tensor =
      at::detail::empty_cpu({static_cast<int64_t>(bytes.size())}, at::kByte, false, std::nullopt);
  if (!bytes.empty())
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

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

Generators::Generators(const Devices& devices)
    : devices_(devices), is_swapping_(!devices.is_cuda() && devices.count() > 1) {
  defaults_.resize(devices.count());
}

Generators::~Generators() {
  if (current_ != 0)
    swap_in(0);
}

at::Generator Generators::make(uint8_t device) const {
  const c10::Device where = devices_.device(device);
  if (where.is_cpu())
    return at::detail::createCPUGenerator();
  at::globalContext().lazyInitDevice(where.type());
  return at::globalContext()
      .getAcceleratorHooksInterface(where.type())
      .getNewGenerator(where.index());
}

const at::Generator& Generators::find(uint64_t name) {
  if (name >= wire::kFirstGenerator) {
    const auto found = made_.find(name);
    if (found == made_.end())
      throw ProtocolError("no generator has the name " + std::to_string(name));
    return found->second.generator;
  }
  if (name == 0)
    throw ProtocolError("name 0 is never valid");
  const auto device = static_cast<uint8_t>(name - wire::kDefaultGenerator);
  const c10::Device where = devices_.device(device);
  at::Generator& generator = defaults_[device];
  if (!generator.defined()) {
    const bool is_own = where.is_cpu() && device != 0;
    generator = is_own ? make(device) : at::globalContext().defaultGenerator(where);
  }
  return generator;
}

void Generators::apply(const wire::GeneratorMessage& message, Origin here) {
  switch (message.action) {
    case wire::GeneratorAction::kSeed: {
      at::Generator generator = find(message.name);
      generator.set_current_seed(message.seed);
      return;
    }
    case wire::GeneratorAction::kSetState: {
      at::Generator generator = find(message.name);
      if (generator.device().is_cpu() && !is_safe_cpu_state(message.state))
        TORCH_CHECK(false, "the state is none of a CPU generator");
      generator.set_state(to_tensor(message.state));
      return;
    }
    case wire::GeneratorAction::kFree:
      if (made_.erase(message.name) == 0)
        throw ProtocolError("no such generator to free");
      return;
    case wire::GeneratorAction::kMake:
      if (message.name < wire::kFirstGenerator || message.seed >= wire::kMaxDevices)
        throw ProtocolError("a generator is made with a name or device that is not allowed");
      wire::check_limit("generators of a session", made_.size() + 1, wire::kMaxGenerators);
      if (!made_.emplace(message.name, Made{make(static_cast<uint8_t>(message.seed)), here}).second)
        throw ProtocolError("a generator's name is taken");
      return;
    case wire::GeneratorAction::kCopy: {
      at::Generator generator = find(message.name);
      generator.set_state(find(message.seed).get_state());
      return;
    }
  }
}

std::vector<std::byte> Generators::state(uint64_t name) {
  const at::Tensor state = find(name).get_state();
  const auto* const begin = static_cast<const std::byte*>(state.const_data_ptr());
  return {begin, begin + state.nbytes()};
}

Origin Generators::made(uint64_t name) const {
  const auto found = made_.find(name);
  return found == made_.end() ? Origin{} : found->second.origin;
}

void Generators::swap_in(uint8_t device) {
  find(wire::kDefaultGenerator + current_);  // saves device 0's generator before it is replaced
  const at::Generator& wanted = find(wire::kDefaultGenerator + device);
  // PyTorch has no other way to replace the default generator of a process.
  const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator()) = wanted;  // NOLINT
  current_ = device;
}

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
