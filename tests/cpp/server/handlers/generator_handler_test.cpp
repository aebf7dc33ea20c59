#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>

#include "base/error.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

FrameText seeded(uint64_t name, uint64_t seed) {
  FrameText frame;
  wire::GeneratorMessage message;
  message.name = name;
  message.seed = seed;
  encode(frame.writer, message);
  return frame;
}

SignatureText uniform(uint32_t index, uint32_t operation, uint8_t device, bool has_generator) {
  SignatureText text(index, operation, "aten::uniform_", "");
  text.tensor("self", spec({4}), 0)
      .value("from", wire::ValueKind::kFloat)
      .value("to", wire::ValueKind::kFloat);
  text.value("generator", has_generator ? wire::ValueKind::kGenerator : wire::ValueKind::kNone);
  return text.device(device).outputs({same_tensor(0)});
}

std::vector<float> local_numbers(uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor numbers = at::rand({4}, generator);
  return {numbers.const_data_ptr<float>(), numbers.const_data_ptr<float>() + 4};
}

TEST(GeneratorHandler, ASeededDefaultGeneratorGivesPyTorchsOwnNumbers) {
  Server server;
  server.apply(seeded(wire::kDefaultGenerator, 17));

  server.apply(FrameText()
                   .resize(1, 16)
                   .signature(uniform(0, 0, 0, false))
                   .call(0)
                   .storage(1)
                   .real(0)
                   .real(1));

  EXPECT_EQ(server.read(1, spec({4})).floats(), local_numbers(17));
}

TEST(GeneratorHandler, SimulatedDevicesHaveDefaultGeneratorsOfTheirOwn) {
  Server server(2);
  server.apply(seeded(wire::kDefaultGenerator, 1));
  server.apply(seeded(wire::kDefaultGenerator + 1, 2));
  SignatureText second = uniform(1, 0, 1, false);
  second.known();
  server.apply(FrameText()
                   .resize(1, 16, 0)
                   .resize(2, 16, 1)
                   .signature(uniform(0, 0, 0, false))
                   .signature(second));

  server.apply(FrameText().call(1).storage(2).real(0).real(1).call(0).storage(1).real(0).real(1));

  EXPECT_EQ(server.read(1, spec({4})).floats(), local_numbers(1));
  EXPECT_EQ(server.read(2, spec({4})).floats(), local_numbers(2));
}

TEST(GeneratorHandler, AGeneratorThatTheClientMadeIsUsedByName) {
  Server server;
  FrameText make;
  encode(make.writer,
         wire::GeneratorMessage{wire::kFirstGenerator, wire::GeneratorAction::kMake, 0, {}});
  server.apply(make);
  server.apply(seeded(wire::kFirstGenerator, 5));

  server.apply(FrameText()
                   .resize(1, 16)
                   .signature(uniform(0, 0, 0, true))
                   .call(0)
                   .storage(1)
                   .real(0)
                   .real(1)
                   .generator(wire::kFirstGenerator));

  EXPECT_EQ(server.read(1, spec({4})).floats(), local_numbers(5));
}

TEST(GeneratorHandler, AGeneratorsStateCanBeTakenAndPutBack) {
  Server server;
  server.apply(seeded(wire::kDefaultGenerator, 3));
  const auto state = server.apply(
      FrameText().query(4, wire::QueryKind::kGenerator).generator(wire::kDefaultGenerator));
  server.apply(seeded(wire::kDefaultGenerator, 99));
  FrameText restore;
  encode(restore.writer,
         wire::GeneratorMessage{wire::kDefaultGenerator, wire::GeneratorAction::kSetState, 0,
                                state.at(0).body});
  server.apply(restore);

  server.apply(FrameText()
                   .resize(1, 16)
                   .signature(uniform(0, 0, 0, false))
                   .call(0)
                   .storage(1)
                   .real(0)
                   .real(1));

  EXPECT_EQ(server.read(1, spec({4})).floats(), local_numbers(3));
}

TEST(GeneratorHandler, ACopyOfAGeneratorKeepsAStateThatCanBePutBack) {
  Server server;
  const uint64_t snapshot = wire::kFirstGenerator + 3;
  FrameText take;
  encode(take.writer, wire::GeneratorMessage{snapshot, wire::GeneratorAction::kMake, 0, {}});
  encode(take.writer, wire::GeneratorMessage{
                          snapshot, wire::GeneratorAction::kCopy, wire::kDefaultGenerator, {}});
  server.apply(seeded(wire::kDefaultGenerator, 3));
  server.apply(take);
  server.apply(seeded(wire::kDefaultGenerator, 99));
  FrameText restore;
  encode(restore.writer, wire::GeneratorMessage{
                             wire::kDefaultGenerator, wire::GeneratorAction::kCopy, snapshot, {}});
  encode(restore.writer, wire::GeneratorMessage{snapshot, wire::GeneratorAction::kFree, 0, {}});
  server.apply(restore);

  server.apply(FrameText()
                   .resize(1, 16)
                   .signature(uniform(0, 0, 0, false))
                   .call(0)
                   .storage(1)
                   .real(0)
                   .real(1));

  EXPECT_EQ(server.read(1, spec({4})).floats(), local_numbers(3));
  FrameText again;
  encode(again.writer, wire::GeneratorMessage{
                           wire::kDefaultGenerator, wire::GeneratorAction::kCopy, snapshot, {}});
  EXPECT_THROW(server.apply(again), ProtocolError);  // it was freed
}

TEST(GeneratorHandler, ADiscardedCallDoesNotAdvanceAGenerator) {
  Server server;
  server.apply(seeded(wire::kDefaultGenerator, 17));
  SignatureText refused(1, 0, "aten::as_strided", "");
  refused.tensor("self", spec({4}), 0).outputs({fresh(spec({4}))});
  SignatureText bernoulli(2, 1, "aten::bernoulli", "");
  bernoulli.tensor("self", spec({4}), 0).value("generator", wire::ValueKind::kNone);
  bernoulli.outputs({fresh(spec({4}))});
  SignatureText draw = uniform(0, 2, 0, false);
  server.apply(
      FrameText().thread(1).resize(1, 16).signature(refused).signature(bernoulli).signature(draw));

  server.apply(FrameText().call(1).storage(1).output(2).call(2).storage(2).output(3));
  server.apply(FrameText().go_on(1).call(0).storage(1).real(0).real(1));

  EXPECT_EQ(server.read(1, spec({4})).floats(), local_numbers(17));
}

}  // namespace
}  // namespace torch_remote::server::testing
