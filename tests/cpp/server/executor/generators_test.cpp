#include "server/executor/generators.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

namespace torch_remote::server {
namespace {

// Where the numbers lie in a state: Note [States of a CPU generator].
constexpr size_t kLeft = 8;
constexpr size_t kSeeded = 12;
constexpr size_t kNext = 16;
constexpr size_t kHasNormal = 5040;
constexpr size_t kLegacySize = 5048;
constexpr size_t kHasFloatNormal = 5052;

using Bytes = std::vector<std::byte>;

Bytes state_of(const at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  const auto* const begin = static_cast<const std::byte*>(state.const_data_ptr());
  return {begin, begin + state.nbytes()};
}

template <typename Number>
Bytes with(Bytes state, size_t at, Number number) {
  std::memcpy(state.data() + at, &number, sizeof number);
  return state;
}

Bytes with_place(const Bytes& state, uint64_t next, int32_t left) {
  return with(with(state, kNext, next), kLeft, left);
}

TEST(GeneratorState, EveryStateOfAGeneratorThatIsUsedIsAccepted) {
  const at::Generator generator = at::detail::createCPUGenerator(7);
  auto* const engine = at::check_generator<at::CPUGeneratorImpl>(generator);
  for (int drawn = 0; drawn < 1300; ++drawn) {
    ASSERT_TRUE(is_safe_cpu_state(state_of(generator))) << drawn;
    engine->random();
  }
  engine->set_next_float_normal_sample(1.5F);
  engine->set_next_double_normal_sample(1.5);
  const Bytes state = state_of(generator);
  EXPECT_TRUE(is_safe_cpu_state(state));
  EXPECT_TRUE(is_safe_cpu_state(std::span(state).first(kLegacySize)));
}

// Promise 5b.
TEST(GeneratorState, AStateThatWouldReadBeyondItsNumbersIsRefused) {
  const Bytes state = state_of(at::detail::createCPUGenerator(7));
  for (const uint64_t next : {0, 1, 300, 623, 624}) {
    EXPECT_TRUE(is_safe_cpu_state(with_place(state, next, 1))) << next;
    const auto most = static_cast<int32_t>(625 - next);
    EXPECT_EQ(is_safe_cpu_state(with_place(state, next, most)), most <= 624) << next;
    if (most + 1 > 1)
      EXPECT_FALSE(is_safe_cpu_state(with_place(state, next, most + 1))) << next;
  }
  EXPECT_FALSE(is_safe_cpu_state(with_place(state, 624, 624)));
  EXPECT_FALSE(is_safe_cpu_state(with_place(state, 625, 1)));
  EXPECT_FALSE(is_safe_cpu_state(with_place(state, uint64_t{1} << 32, 624)));
  EXPECT_FALSE(is_safe_cpu_state(with_place(state, UINT64_MAX, 2)));
  for (const int32_t left : {0, -1, INT32_MIN, 625, INT32_MAX})
    EXPECT_FALSE(is_safe_cpu_state(with_place(state, 0, left))) << left;
}

// Promise 5b.
TEST(GeneratorState, FlagsAndSizesAreChecked) {
  const Bytes state = state_of(at::detail::createCPUGenerator(7));
  ASSERT_EQ(state.size(), 5056);
  EXPECT_FALSE(is_safe_cpu_state(with(state, kSeeded, int32_t{0})));
  EXPECT_FALSE(is_safe_cpu_state(with(state, kHasNormal, int32_t{2})));
  EXPECT_FALSE(is_safe_cpu_state(with(state, kHasFloatNormal, uint8_t{2})));
  EXPECT_TRUE(is_safe_cpu_state(with(state, kHasFloatNormal, uint8_t{1})));
  for (const size_t size : {size_t{0}, size_t{16}, kLegacySize - 1, state.size() - 1})
    EXPECT_FALSE(is_safe_cpu_state(std::span(state).first(size))) << size;
}

// Promise 5b.
TEST(GeneratorState, AClientThatSetsAnUnsafeStateIsRefusedAndTheGeneratorStays) {
  const Devices devices(c10::kCPU, 1);
  Generators generators(devices);
  wire::GeneratorMessage message;
  message.action = wire::GeneratorAction::kMake;
  message.name = wire::kFirstGenerator;
  generators.apply(message, {});
  const Bytes before = generators.state(message.name);
  const Bytes unsafe = with_place(before, 624, 624);
  message.action = wire::GeneratorAction::kSetState;
  message.state = unsafe;
  EXPECT_THROW(generators.apply(message, {}), c10::Error);
  EXPECT_EQ(generators.state(message.name), before);
  message.state = before;
  generators.apply(message, {});
}

}  // namespace
}  // namespace torch_remote::server
