#include "server/handlers/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>

#include "base/error.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Interpreter, AFreeAppliesWhereItStands) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {2}).signature(add_signature(0, 0, {1})));

  server.apply(
      FrameText().call(0).storage(1).storage(2).real(1).output(3).free({1, 2}).store(1, {5}));

  EXPECT_THAT(server.read(3, spec({1})).floats(), ElementsAre(3));
  EXPECT_THAT(server.read(1, spec({1})).floats(), ElementsAre(5));
  EXPECT_EQ(server.interpreter.counters().storages, 2);
  EXPECT_EQ(server.interpreter.counters().storage_bytes, 8);
}

TEST(Interpreter, ACallBehindTheFreeOfItsStorageIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {2}).signature(add_signature(0, 0, {1})));

  EXPECT_THROW(
      server.apply(FrameText().free({1, 2}).call(0).storage(1).storage(2).real(1).output(3)),
      ProtocolError);
}

// Promise 6.
TEST(Interpreter, AFreedNameIsUnknown) {
  Server server;
  server.apply(FrameText().store(1, {1}).free({1}));

  EXPECT_THROW(server.read(1, spec({1})), ProtocolError);
  EXPECT_THROW(server.apply(FrameText().free({1})), ProtocolError);
}

// Promise 6.
TEST(Interpreter, NameZeroIsNeverValid) {
  Server server;
  SignatureText zero(0, 0, "aten::zero_", "");
  zero.tensor("self", spec({1}), 0, {4}).outputs({same_tensor(0)});

  EXPECT_THROW(server.apply(FrameText().signature(zero).call(0).storage(0)), ProtocolError);
}

// Promise 6.
TEST(Interpreter, ALiveNameCannotBeMadeAgain) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {1}).signature(add_signature(0, 0, {1})));

  EXPECT_THROW(server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(1)),
               ProtocolError);
}

TEST(Interpreter, AReadOfAViewGivesItsElementsInOrder) {
  Server server;
  server.apply(FrameText().store(1, {1, 2, 3, 4, 5, 6}));
  wire::TensorSpec column = spec({2});
  column.strides = {3};

  EXPECT_THAT(server.read(1, column, 1).floats(), ElementsAre(2, 5));
}

// Promise 5.
TEST(Interpreter, AReadOutsideItsStorageIsAnError) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}));

  EXPECT_EQ(server.read(1, spec({2}), 1).error.kind, wire::ErrorKind::kRefused);
  EXPECT_EQ(server.read(1, spec({2}), UINT64_MAX / 2).error.kind, wire::ErrorKind::kRefused);
}

// Promise 5.
TEST(Interpreter, AnUploadOutsideItsStorageIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}));

  EXPECT_THROW(server.apply(FrameText().upload(1, {1, 2}, 4)), ProtocolError);
}

TEST(Interpreter, AnUploadWhoseOffsetAndLengthOverflowIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}));

  EXPECT_THROW(server.apply(FrameText().upload(1, {1, 2}, UINT64_MAX - 3)), ProtocolError);
  EXPECT_THROW(server.apply(FrameText().upload(1, {1, 2}, uint64_t{1} << 63)), ProtocolError);
}

// make, view, run, free, replay
TEST(Interpreter, ASignatureReplayedOnAFreedStorageIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {2}).signature(add_signature(0, 0, {1})));
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(3));
  server.apply(FrameText().free({1}));

  EXPECT_THROW(server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(4)),
               ProtocolError);
}

// Promise 5.
TEST(Interpreter, ASignatureReplayedOnASmallerStorageIsRefused) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).store(2, {3, 4}).signature(add_signature(0, 0, {2})));
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(3));

  server.apply(FrameText().resize(1, 4).call(0).storage(1).storage(2).real(1).output(4).go_on(1));
  server.apply(FrameText().store(5, {1}).call(0).storage(2).storage(5).real(1).output(6).go_on(1));

  EXPECT_THAT(server.read(3, spec({2})).floats(), ElementsAre(4, 6));
  EXPECT_EQ(server.read(4, spec({2})).error.kind, wire::ErrorKind::kRefused);
  EXPECT_EQ(server.read(6, spec({2})).error.kind, wire::ErrorKind::kRefused);
}

TEST(Interpreter, ACopyIsCheckedAtBothEnds) {
  Server server;
  SignatureText copy(0, 0, "aten::copy_", "");
  copy.tensor("self", spec({2}), 0).tensor("src", spec({2}), 1);
  copy.value("non_blocking", wire::ValueKind::kFalse).outputs({same_tensor(0)});
  server.apply(FrameText().store(1, {1, 2}).store(2, {3}).store(3, {4, 5}).signature(copy));

  server.apply(FrameText().call(0).storage(2).storage(1));     // the target is too small
  server.apply(FrameText().call(0).storage(1).storage(3, 1));  // the source ends before the view

  EXPECT_EQ(server.read(2, spec({1})).error.kind, wire::ErrorKind::kRefused);
  EXPECT_EQ(server.read(1, spec({2})).error.kind, wire::ErrorKind::kRefused);
}

TEST(Interpreter, AStorageKeepsItsBytesWhenItIsResized) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).resize(1, 16));

  const auto values = server.read(1, spec({4})).floats();

  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
}

TEST(Interpreter, AMessageThatIsNotKnownIsSkippedAndAnsweredWithItsName) {
  Server server;
  FrameText frame;
  frame.tag(wire::Tag::kProgram).whole(5).tag(static_cast<wire::Tag>(99)).store(1, {1, 2});

  server.apply(frame);

  ASSERT_EQ(server.notices.size(), 2);
  EXPECT_EQ(server.notices[0].operator_name, "PROGRAM");
  EXPECT_EQ(server.notices[1].operator_name, "message 99");
  EXPECT_FALSE(server.read(1, spec({2})).failed);
}

TEST(Interpreter, TooManyMessagesOfAnUnknownKindEndTheSession) {
  Server server;
  FrameText frame;
  for (uint64_t i = 0; i <= wire::kMaxSkippedTags; ++i)
    frame.tag(static_cast<wire::Tag>(99));
  EXPECT_THROW(server.apply(frame), ProtocolError);
}

TEST(Interpreter, BytesBehindTheEndOfAMessageAreAProtocolError) {
  Server server;
  FrameText frame;
  frame.tag(wire::Tag::kThread).whole(1).whole(1);
  EXPECT_THROW(server.apply(frame), ProtocolError);
}

TEST(Interpreter, ACallWithoutItsSignatureIsAProtocolError) {
  Server server;
  EXPECT_THROW(server.apply(FrameText().call(3)), ProtocolError);
}

TEST(Interpreter, ADeviceThatIsNotThereIsAProtocolError) {
  Server server(2);
  server.apply(FrameText().resize(1, 4, 1));
  EXPECT_THROW(server.apply(FrameText().resize(2, 4, 2)), ProtocolError);
}

TEST(Interpreter, OperatorsOutsideTheAllowListAreRefusedInPlaceOfTheirResults) {
  Server server;
  SignatureText strided(0, 0, "aten::as_strided", "");
  strided.tensor("self", spec({1}), 0).integers("size", {1}).integers("stride", {1});
  strided.outputs({fresh(spec({1}))});
  SignatureText other(1, 1, "prims::sin", "");
  other.tensor("self", spec({1}), 0).outputs({fresh(spec({1}))});

  server.apply(FrameText().store(1, {1}).signature(strided).call(0).storage(1).output(2).go_on(1));
  server.apply(FrameText().signature(other).call(1).storage(1).output(3).go_on(1));

  EXPECT_EQ(server.read(2, spec({1})).error.kind, wire::ErrorKind::kRefused);
  EXPECT_THAT(server.read(3, spec({1})).error.message, HasSubstr("serve --library"));
}

// --- generators

FrameText seeded(uint64_t name, uint64_t seed) {
  FrameText frame;
  wire::GeneratorMessage message;
  message.name = name;
  message.seed = seed;
  encode(frame.writer, message);
  return frame;
}

SignatureText uniform(uint32_t slot, uint32_t operation, uint8_t device, bool has_generator) {
  SignatureText text(slot, operation, "aten::uniform_", "");
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

TEST(Interpreter, ASeededDefaultGeneratorGivesPyTorchsOwnNumbers) {
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

TEST(Interpreter, SimulatedDevicesHaveDefaultGeneratorsOfTheirOwn) {
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

TEST(Interpreter, AGeneratorThatTheClientMadeIsUsedByName) {
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

TEST(Interpreter, AGeneratorsStateCanBeTakenAndPutBack) {
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

TEST(Interpreter, ACopyOfAGeneratorKeepsAStateThatCanBePutBack) {
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

TEST(Interpreter, TheContextCanBeAskedFor) {
  Server server;
  FrameText frame;
  encode(frame.writer, wire::Context{{{wire::Setting::kSdpOrder, 043210}}});
  frame.query(7, wire::QueryKind::kContext);

  const auto answers = server.apply(frame);

  wire::Reader reader(answers.at(0).body);
  const wire::Context context = wire::decode_context(reader);
  ASSERT_EQ(context.settings.size(), wire::kMaxSetting);
  const size_t order = static_cast<size_t>(wire::Setting::kSdpOrder) - 1;
  EXPECT_EQ(context.settings[order], (wire::SettingValue{wire::Setting::kSdpOrder, 043210}));
}

TEST(Interpreter, ADiscardedCallDoesNotAdvanceAGenerator) {
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
