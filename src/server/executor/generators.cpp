#include "server/executor/generators.h"

#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "server/device/generator_state.h"
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

}  // namespace torch_remote::server
