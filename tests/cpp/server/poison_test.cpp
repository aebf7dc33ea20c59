#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/execute.h"
#include "support.h"
#include "wire/limits.h"

// What a failure does to storages, and how it is told and healed: Note [Poison].

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::ErrorKind;
using wire::ValueKind;

// aten::index.Tensor with one index: the kernel itself finds that it is out of range.
SignatureText index_select(uint32_t slot, uint32_t operation) {
  SignatureText text(slot, operation, "aten::index_select", "");
  text.tensor("self", spec({2}), 0)
      .integer("dim", 0)
      .tensor("index", spec({1}, wire::Dtype::kInt64), 1);
  return text.outputs({fresh(spec({1}))});
}

// Leaves storage 3 poisoned: index 7 of two elements.
void fail_a_call(Server& server, uint32_t operation = 0) {
  server.apply(FrameText().store(101, {1, 2}).resize(102, 8));
  FrameText frame;
  wire::Begin begin;
  const int64_t index = 7;
  begin.storage = 102;
  begin.bytes = std::as_bytes(std::span(&index, 1));
  begin.length = 8;
  begin.is_inline = true;
  encode(frame.writer, begin);
  frame.signature(index_select(50, operation)).call(50).storage(101).storage(102).output(3);
  server.apply(frame);
}

TEST(Poison, AFailingCallPoisonsItsOutputsWithKindOperatorAndMessage) {
  Server server;
  fail_a_call(server);

  const Reply reply = server.read(3, spec({1}));

  ASSERT_TRUE(reply.failed);
  EXPECT_EQ(reply.error.kind, ErrorKind::kIndex);
  EXPECT_EQ(reply.error.operator_name, "aten::index_select");
  EXPECT_THAT(reply.error.message, HasSubstr("out of range"));
  EXPECT_THAT(reply.error.message, ::testing::Not(HasSubstr("frame #")));
  EXPECT_EQ(reply.error.signature, 50 + 1);
}

TEST(Poison, ACallThatReadsPoisonIsSkippedAndHandsOnTheFirstCause) {
  Server server;
  fail_a_call(server);
  server.apply(FrameText().store(4, {1}).signature(add_signature(1, 1, {1})));

  server.apply(FrameText().call(1).storage(3).storage(4).real(1).output(5));
  server.apply(FrameText().call(1).storage(4).storage(5).real(1).output(6));

  const Reply reply = server.read(6, spec({1}));
  ASSERT_TRUE(reply.failed);
  EXPECT_EQ(reply.error.operator_name, "aten::index_select");
  EXPECT_FALSE(server.read(4, spec({1})).failed);
}

// aten::add_ of one element: call(slot).storage(self).storage(other).whole(1).
SignatureText add_in_place(uint32_t slot, uint32_t operation) {
  SignatureText add(slot, operation, "aten::add_", "Tensor");
  add.tensor("self", spec({1}), 0)
      .tensor("other", spec({1}), 1)
      .value("alpha", ValueKind::kScalarInt);
  return add.outputs({same_tensor(0)});
}

TEST(Poison, TheInPlaceTargetOfASkippedCallIsMarkedAndKeepsItsBytes) {
  Server server;
  fail_a_call(server);
  server.apply(FrameText().store(4, {5}).store(5, {7}).signature(add_in_place(1, 1)));

  server.apply(FrameText().call(1).storage(4).storage(3).whole(1));
  server.apply(FrameText().call(1).storage(5).storage(4).whole(1));  // reads the mark

  const uint64_t cause = server.read(3, spec({1})).error.call;
  EXPECT_EQ(server.read(4, spec({1})).error.call, cause);
  EXPECT_EQ(server.read(5, spec({1})).error.call, cause);
  server.apply(FrameText().heal(cause));
  EXPECT_THAT(server.read(4, spec({1})).floats(), ElementsAre(5));
  EXPECT_THAT(server.read(5, spec({1})).floats(), ElementsAre(7));
  EXPECT_TRUE(server.read(3, spec({1})).failed) << "what the failing call makes stays poisoned";
}

TEST(Poison, AHealTakesTheMarksOfItsOwnCauseAwayAndNoOthers) {
  Server server;
  fail_a_call(server);
  server.apply(FrameText().call(50).storage(101).storage(102).output(6));  // fails too
  SignatureText copy(2, 2, "aten::copy_", "");
  copy.tensor("self", spec({1}), 0).tensor("src", spec({1}), 1);
  copy.value("non_blocking", ValueKind::kFalse).outputs({same_tensor(0)});
  server.apply(FrameText().store(4, {5}).signature(add_in_place(1, 1)).signature(copy));

  server.apply(FrameText().call(1).storage(4).storage(3).whole(1));
  server.apply(FrameText().call(2).storage(4).storage(6));  // would overwrite it whole

  const uint64_t first = server.read(3, spec({1})).error.call;
  const uint64_t second = server.read(6, spec({1})).error.call;
  EXPECT_LT(first, second);
  EXPECT_EQ(server.read(4, spec({1})).error.call, first);
  server.apply(FrameText().heal(first));
  EXPECT_EQ(server.read(4, spec({1})).error.call, second);
  server.apply(FrameText().heal(second));
  EXPECT_THAT(server.read(4, spec({1})).floats(), ElementsAre(5));
}

TEST(Poison, AStorageThatIsOverwrittenWholeHasNoMarksAnyMore) {
  Server server;
  fail_a_call(server);
  server.apply(FrameText().store(4, {5}).signature(add_in_place(1, 1)));
  server.apply(FrameText().call(1).storage(4).storage(3).whole(1));

  server.apply(FrameText().upload(4, {8}));

  EXPECT_THAT(server.read(4, spec({1})).floats(), ElementsAre(8));
}

SignatureText fill_one(uint32_t slot, uint32_t operation) {
  SignatureText fill(slot, operation, "aten::fill_", "Scalar");
  fill.tensor("self", spec({1}), 0).value("value", ValueKind::kScalarInt);
  return fill.outputs({same_tensor(0)});
}

TEST(Poison, WhatAnUpdateHadBegunBeforeItWasSkippedIsUndoneByAHeal) {
  Server server;
  server.apply(FrameText().store(4, {5}).store(5, {6}).store(6, {7}));
  fail_a_call(server);
  server.apply(FrameText().signature(add_in_place(1, 1)).signature(fill_one(2, 2)));

  server.apply(FrameText().call(2).storage(4).whole(1));             // reads nothing of it: runs
  server.apply(FrameText().call(1).storage(4).storage(3).whole(1));  // is skipped
  server.apply(FrameText().call(1).storage(5).storage(6).whole(1));  // has nothing to do with it

  server.apply(FrameText().heal(server.read(4, spec({1})).error.call));
  EXPECT_THAT(server.read(4, spec({1})).floats(), ElementsAre(5));
  EXPECT_THAT(server.read(5, spec({1})).floats(), ElementsAre(13)) << "stays good";
}

TEST(Poison, AHealThatUndoesPutsBackWhatWasWrittenSinceTheFailure) {
  Server server;
  server.apply(FrameText().store(4, {5}).store(5, {6}).store(6, {7}));
  fail_a_call(server);
  server.apply(FrameText().signature(add_in_place(1, 1)));

  server.apply(FrameText().call(1).storage(5).storage(6).whole(1));  // has nothing to do with it
  server.apply(FrameText().call(1).storage(4).storage(3).whole(1));  // is skipped

  server.apply(FrameText().heal(server.read(4, spec({1})).error.call, true));
  EXPECT_THAT(server.read(5, spec({1})).floats(), ElementsAre(6));
}

TEST(Poison, AResizeThatFailsBehindAnotherFailurePoisonsWhatWasKept) {
  Server server;
  server.apply(FrameText().store(4, {5}));
  fail_a_call(server);
  server.apply(FrameText().signature(fill_one(1, 1)).call(1).storage(4).whole(1));  // 4 is kept

  server.apply(FrameText().resize(4, uint64_t{1} << 46));

  EXPECT_EQ(server.read(4, spec({1})).error.operator_name, "resize");
}

TEST(Poison, AnUploadBehindAFailureIsUndone) {
  Server server;
  server.apply(FrameText().store(4, {5}));
  fail_a_call(server);
  const uint64_t cause = server.read(3, spec({1})).error.call;

  server.apply(FrameText().upload(4, {8}).heal(cause, true));

  EXPECT_THAT(server.read(4, spec({1})).floats(), ElementsAre(5));
}

TEST(Poison, AFailureTellsWhatItHasDoneToStorages) {
  Server server;
  server.apply(FrameText().store(4, {5}).store(5, {6}));
  fail_a_call(server);
  const uint64_t cause = server.read(3, spec({1})).error.call;
  server.apply(FrameText().signature(add_in_place(1, 1)));
  server.apply(FrameText().call(1).storage(5).storage(5).whole(1));  // call cause + 1
  for (int i = 0; i < 2; ++i)
    server.apply(FrameText().call(1).storage(4).storage(3).whole(1));

  const auto ask = [&](uint64_t number) {
    const Reply reply = server.apply(FrameText().taints(9, number, {3, 4, 5})).at(0);
    wire::Reader reader(reply.body);
    return std::vector<uint64_t>{reader.varint(), reader.varint(), reader.varint()};
  };

  EXPECT_THAT(ask(cause),
              ElementsAre(wire::kPoisoned, wire::kSkipped + cause + 2, wire::kUntouched));
  EXPECT_THAT(ask(cause + 1), ElementsAre(0, 0, 0));
  EXPECT_THROW(server.apply(FrameText().taints(9, cause, {77})), ProtocolError);
}

TEST(Poison, CallsUploadsAndResizesAreNumberedTogether) {
  Server server;
  server.apply(FrameText().store(101, {1, 2}).resize(102, 8).upload(102, {0, 1}));  // 1 to 4

  server.apply(
      FrameText().signature(index_select(50, 0)).call(50).storage(101).storage(102).output(3));

  EXPECT_EQ(server.read(3, spec({1})).error.call, 5);
}

TEST(Poison, AFailureIsToldUnaskedAndASkippedCallIsNot) {
  Server server;
  fail_a_call(server);
  server.apply(FrameText().store(4, {5}).signature(add_in_place(1, 1)));
  server.apply(FrameText().call(1).storage(4).storage(3).whole(1));

  ASSERT_EQ(server.notices.size(), 1);
  EXPECT_EQ(server.notices[0].operator_name, "aten::index_select");
  EXPECT_EQ(server.notices[0].call, server.read(3, spec({1})).error.call);
}

TEST(Poison, MemoryThatAKernelGrewBeforeItFailedIsGivenBack) {
  Server server;
  SignatureText relu(0, 0, "aten::relu", "out");
  relu.tensor("self", spec({4}), 0).tensor("out", spec({2}), 1).outputs({same_tensor(1)});
  server.apply(FrameText().store(1, {1, 2, 3, 4}).store(2, {8, 9}).signature(relu));
  const uint64_t before = server.interpreter.counters().storage_bytes;

  server.apply(FrameText().call(0).storage(1).storage(2));  // resizes it, which was not predicted

  EXPECT_TRUE(server.read(2, spec({2})).failed);
  EXPECT_EQ(server.interpreter.counters().storage_bytes, before);
  server.apply(FrameText().upload(2, {5, 6}));
  EXPECT_THAT(server.read(2, spec({2})).floats(), ElementsAre(5, 6));
  EXPECT_TRUE(server.read(2, spec({4})).failed) << "there is no more than the client knows of";
}

TEST(Poison, AStorageMadeByASkippedCallIsPoisoned) {
  Server server;
  fail_a_call(server);
  SignatureText relu(1, 1, "aten::relu", "out");
  relu.tensor("self", spec({1}), 0).tensor("out", spec({1}), 1, {4}).outputs({same_tensor(1)});

  server.apply(FrameText().signature(relu).call(1).storage(3).storage(9));

  EXPECT_TRUE(server.read(9, spec({1})).failed);
}

TEST(Poison, TheTargetOfTheFailingCallItselfIsPoisoned) {
  Server server;
  SignatureText index_add(0, 0, "aten::index_fill_", "int_Scalar");
  index_add.tensor("self", spec({2}), 0).integer("dim", 0);
  index_add.tensor("index", spec({1}, wire::Dtype::kInt64), 1)
      .value("value", ValueKind::kScalarInt);
  index_add.outputs({same_tensor(0)});
  server.apply(
      FrameText().store(1, {1, 2}).store(2, {1e30F, 1e30F}));  // as int64: far out of range

  server.apply(FrameText().signature(index_add).call(0).storage(1).storage(2).whole(1));

  EXPECT_TRUE(server.read(1, spec({2})).failed);
}

TEST(Poison, AWholeUploadTakesPoisonAwayAndAPartOfOneDoesNot) {
  Server server;
  fail_a_call(server);
  server.apply(FrameText().resize(3, 8));

  server.apply(FrameText().upload(3, {1}, 4));
  EXPECT_TRUE(server.read(3, spec({2})).failed);

  server.apply(FrameText().upload(3, {8, 9}));
  EXPECT_THAT(server.read(3, spec({2})).floats(), ElementsAre(8, 9));
}

TEST(Poison, BeingOverwrittenWholeTakesPoisonAwayAndInPartDoesNot) {
  Server server;
  fail_a_call(server);
  server.apply(FrameText().resize(3, 8));
  SignatureText part(1, 1, "aten::zero_", "");
  part.tensor("self", spec({1}), 0).outputs({same_tensor(0)});
  SignatureText whole(2, 1, "aten::zero_", "");
  whole.known().tensor("self", spec({2}), 0).outputs({same_tensor(0)});

  server.apply(FrameText().signature(part).call(1).storage(3));
  EXPECT_TRUE(server.read(3, spec({2})).failed);

  server.apply(FrameText().signature(whole).call(2).storage(3));
  EXPECT_THAT(server.read(3, spec({2})).floats(), ElementsAre(0, 0));
}

wire::Failures barrier(Server& server) {
  const auto replies = server.apply(FrameText().query(1, wire::QueryKind::kBarrier));
  wire::Reader reader(replies.at(0).body);
  return wire::decode_failures(reader);
}

TEST(Poison, ABarrierTellsFailuresThatNoHealHasNamed) {
  Server server;
  EXPECT_EQ(barrier(server).total, 0);
  fail_a_call(server);
  server.apply(FrameText().call(50).storage(101).storage(102).output(6));

  const wire::Failures failures = barrier(server);
  ASSERT_EQ(failures.errors.size(), 2);
  EXPECT_EQ(failures.total, 2);
  server.apply(FrameText().heal(failures.errors[0].call));
  ASSERT_EQ(barrier(server).errors.size(), 1);
  EXPECT_EQ(barrier(server).errors[0].call, failures.errors[1].call);
}

TEST(Poison, ACallThatIsSkippedForAFailureThatWasToldIsToldAgain) {
  Server server;
  fail_a_call(server);
  const uint64_t cause = barrier(server).errors.at(0).call;
  server.apply(FrameText().heal(cause));
  server.apply(FrameText().store(4, {5}).signature(add_in_place(1, 1)));

  server.apply(FrameText().call(1).storage(4).storage(3).whole(1));

  EXPECT_EQ(barrier(server).errors.at(0).call, cause);
}

TEST(Poison, MoreFailuresThanAreListedAreCounted) {
  Server server;
  fail_a_call(server);
  for (uint64_t i = 0; i < 299; ++i)
    server.apply(FrameText().call(50).storage(101).storage(102).output(1000 + i));

  EXPECT_EQ(barrier(server).total, 300);
  EXPECT_EQ(barrier(server).errors.size(), wire::kMaxFailures);
}

TEST(Poison, AnOutcomeTellsHowTheLastCallWentAndNoOther) {
  Server server;
  EXPECT_FALSE(server.apply(FrameText().query(1, wire::QueryKind::kOutcome)).at(0).failed);
  fail_a_call(server);

  const Reply outcome = server.apply(FrameText().query(2, wire::QueryKind::kOutcome)).at(0);
  EXPECT_EQ(outcome.error.operator_name, "aten::index_select");
  server.apply(FrameText().heal(outcome.error.call));
  EXPECT_EQ(barrier(server).total, 0);

  SignatureText fill(1, 1, "aten::fill_", "Scalar");
  fill.tensor("self", spec({2}), 0).value("value", ValueKind::kScalarInt).outputs({same_tensor(0)});
  const auto replies = server.apply(FrameText().signature(fill).call(1).storage(101).whole(4).query(
      4, wire::QueryKind::kOutcome));
  EXPECT_FALSE(replies.at(0).failed);
}

}  // namespace
}  // namespace torch_remote::server::testing
