#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/executor/execute.h"
#include "support.h"
#include "wire/limits.h"

// What a failure stops, and what is missing after it: Note [Fail-stop], Note [Missing storages].

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::ErrorKind;
using wire::ValueKind;

// The kernel itself finds that the index is out of range.
SignatureText index_select(uint32_t index, uint32_t operation) {
  SignatureText text(index, operation, "aten::index_select", "");
  text.tensor("self", spec({2}), 0)
      .integer("dim", 0)
      .tensor("index", spec({1}, wire::Dtype::kInt64), 1);
  return text.outputs({fresh(spec({1}))});
}

// aten::add_ of one element: call(index).storage(self).storage(other).whole(1).
SignatureText add_in_place(uint32_t index, uint32_t operation) {
  SignatureText add(index, operation, "aten::add_", "Tensor");
  add.tensor("self", spec({1}), 0)
      .tensor("other", spec({1}), 1)
      .value("alpha", ValueKind::kScalarInt);
  return add.outputs({same_tensor(0)});
}

SignatureText fill_one(uint32_t index, uint32_t operation) {
  SignatureText fill(index, operation, "aten::fill_", "Scalar");
  fill.tensor("self", spec({1}), 0).value("value", ValueKind::kScalarInt);
  return fill.outputs({same_tensor(0)});
}

// Storages 4 and 5 hold 5 and 7. Then a call of thread 1 fails that should make storage 3: it reads
// index 7 of two elements. Signature 1 is add_, signature 2 fill_.
class FailStop : public ::testing::Test {
 protected:
  FailStop() {
    server.apply(FrameText()
                     .thread(1)
                     .store(4, {5})
                     .store(5, {7})
                     .signature(index_select(50, 0))
                     .signature(add_in_place(1, 1))
                     .signature(fill_one(2, 2)));
    server.apply(FrameText().store(101, {1, 2}).resize(102, 8));
    wire::Begin begin;
    const int64_t index = 7;
    begin.storage = 102;
    begin.bytes = std::as_bytes(std::span(&index, 1));
    begin.length = 8;
    begin.is_inline = true;
    server.apply(FrameText().message(begin));
    fail();
  }

  void fail(uint64_t output = 3) {
    server.apply(FrameText().call(50).storage(101).storage(102).output(output));
  }

  std::vector<float> value_of(uint64_t name) {
    const Reply reply = server.read(name, spec({1}));
    EXPECT_FALSE(reply.failed) << reply.error.message;
    return reply.floats();
  }

  Server server;
};

TEST_F(FailStop, AFailureIsToldAtOnceWithKindOperatorMessageThreadAndResults) {
  ASSERT_EQ(server.notices.size(), 1);
  const wire::Error& error = server.notices[0];
  EXPECT_EQ(error.kind, ErrorKind::kIndex);
  EXPECT_EQ(error.operator_name, "aten::index_select");
  EXPECT_THAT(error.message, HasSubstr("out of range"));
  EXPECT_THAT(error.message, ::testing::Not(HasSubstr("frame #")));
  EXPECT_EQ(error.signature, 50 + 1);
  EXPECT_EQ(error.call, 9) << "calls, uploads and resizes are numbered together";
  EXPECT_EQ(error.since, 9);
  EXPECT_EQ(error.thread, 1);
  EXPECT_THAT(error.results, ElementsAre(3));
}

TEST_F(FailStop, TheThreadsCallsUploadsAndSeedsAreDiscardedUntilItGoesOn) {
  server.apply(FrameText().call(1).storage(4).storage(5).whole(1).upload(5, {9}));
  server.apply(FrameText().go_on(1));
  EXPECT_THAT(value_of(4), ElementsAre(5));
  EXPECT_THAT(value_of(5), ElementsAre(7));
  server.apply(FrameText().call(1).storage(4).storage(5).whole(1));
  EXPECT_THAT(value_of(4), ElementsAre(12));
  EXPECT_EQ(server.notices.size(), 1) << "what is discarded is no failure";
}

TEST_F(FailStop, AnotherThreadsCallsRunOn) {
  server.apply(FrameText().thread(2).call(1).storage(4).storage(5).whole(1));
  EXPECT_THAT(value_of(4), ElementsAre(12));
  server.apply(FrameText().thread(1));
  EXPECT_TRUE(server.read(4, spec({1})).failed);
}

TEST_F(FailStop, EveryReadAndQueryOfAStoppedThreadIsAnsweredWithTheCause) {
  EXPECT_EQ(server.read(4, spec({1})).error.call, 9);
  const Reply state =
      server
          .apply(
              FrameText().query(9, wire::QueryKind::kGenerator).generator(wire::kDefaultGenerator))
          .at(0);
  EXPECT_EQ(state.error.call, 9);
  const Reply checked =
      server.apply(FrameText().checked_call(9, 1).storage(4).storage(5).whole(1)).at(0);
  EXPECT_EQ(checked.error.call, 9);
  EXPECT_FALSE(server.apply(FrameText().query(9, wire::QueryKind::kBarrier)).at(0).failed);
}

TEST_F(FailStop, WhatFailedAndDiscardedCallsWereToMakeIsMissing) {
  server.apply(FrameText().signature(add_signature(3, 3, {1})));
  server.apply(FrameText().call(3).storage(4).storage(5).real(1).output(6).go_on(1));
  for (const uint64_t name : {3, 6}) {
    const Reply reply = server.read(name, spec({1}));
    ASSERT_TRUE(reply.failed);
    EXPECT_EQ(reply.error.call, 9);
  }
}

TEST_F(FailStop, ACallThatUsesWhatIsMissingStopsItsThreadWithTheFirstCause) {
  server.apply(FrameText().go_on(1).thread(2).call(1).storage(4).storage(3).whole(1));
  ASSERT_EQ(server.notices.size(), 2);
  EXPECT_EQ(server.notices[1].call, 9);
  EXPECT_EQ(server.notices[1].thread, 2);
  EXPECT_EQ(server.notices[1].since, 10);
  server.apply(FrameText().go_on(2));
  EXPECT_THAT(value_of(4), ElementsAre(5));
}

TEST_F(FailStop, ACheckedCallThatFailsOrUsesWhatIsMissingStopsNothing) {
  server.apply(FrameText().go_on(1));
  const Reply missing =
      server.apply(FrameText().checked_call(9, 1).storage(4).storage(3).whole(1)).at(0);
  EXPECT_EQ(missing.error.call, 9);
  const Reply failed =
      server.apply(FrameText().checked_call(9, 50).storage(101).storage(102).output(6)).at(0);
  EXPECT_EQ(failed.error.call, 11);
  EXPECT_TRUE(server.read(6, spec({1})).failed);
  EXPECT_EQ(server.notices.size(), 1);
  const Reply good =
      server.apply(FrameText().checked_call(9, 1).storage(4).storage(5).whole(1)).at(0);
  EXPECT_FALSE(good.failed);
  EXPECT_THAT(value_of(4), ElementsAre(12));
}

TEST_F(FailStop, StoragesFirstMentionedSinceAreFilledByConstantsAndUploads) {
  SignatureText fill_fresh(3, 2, "aten::fill_", "Scalar");
  fill_fresh.known().tensor("self", spec({1}), 0, {4}).value("value", ValueKind::kScalarInt);
  server.apply(FrameText().signature(fill_fresh.outputs({same_tensor(0)})));
  server.apply(FrameText().call(3).storage(20).whole(6));  // as torch.zeros() is
  server.apply(FrameText().store(21, {8}));                // a batch
  server.apply(FrameText().resize(22, 4).call(2).storage(22).whole(9));
  server.apply(FrameText().call(2).storage(4).whole(1));              // an old one
  server.apply(FrameText().call(1).storage(20).storage(5).whole(1));  // no constant
  server.apply(FrameText().go_on(1));
  EXPECT_THAT(value_of(20), ElementsAre(6));
  EXPECT_THAT(value_of(21), ElementsAre(8));
  EXPECT_THAT(value_of(22), ElementsAre(9));
  EXPECT_THAT(value_of(4), ElementsAre(5));
}

TEST_F(FailStop, ANewStorageWhoseFirstWriteIsDiscardedIsMissing) {
  server.apply(FrameText().resize(20, 4).call(1).storage(20).storage(5).whole(1).go_on(1));
  EXPECT_TRUE(server.read(20, spec({1})).failed);
}

TEST_F(FailStop, AnUploadIntoWhatADiscardedCallWasToMakeIsDiscardedToo) {
  server.apply(FrameText().upload(3, {4}).go_on(1));
  EXPECT_TRUE(server.read(3, spec({1})).failed);
}

TEST_F(FailStop, BeingOverwrittenWholeMakesItExistAndInPartDoesNot) {
  server.apply(FrameText().go_on(1).resize(3, 8));
  SignatureText whole(3, 2, "aten::fill_", "Scalar");
  whole.known().tensor("self", spec({2}), 0).value("value", ValueKind::kScalarInt);
  server.apply(FrameText().signature(whole.outputs({same_tensor(0)})));

  server.apply(FrameText().call(2).storage(3).whole(1).go_on(1));  // half of it
  EXPECT_TRUE(server.read(3, spec({2})).failed);
  server.apply(FrameText().upload(3, {1}, 4).go_on(1));
  EXPECT_TRUE(server.read(3, spec({2})).failed);
  server.apply(FrameText().call(3).storage(3).whole(6));
  EXPECT_THAT(server.read(3, spec({2})).floats(), ElementsAre(6, 6));
}

TEST_F(FailStop, AWholeUploadMakesItExist) {
  server.apply(FrameText().go_on(1).upload(3, {8}));
  EXPECT_THAT(value_of(3), ElementsAre(8));
}

TEST_F(FailStop, TheTargetOfTheFailingCallItselfIsUsable) {
  SignatureText index_fill(3, 3, "aten::index_fill_", "int_Scalar");
  index_fill.tensor("self", spec({2}), 0).integer("dim", 0);
  index_fill.tensor("index", spec({1}, wire::Dtype::kInt64), 1)
      .value("value", ValueKind::kScalarInt);
  server.apply(FrameText().go_on(1).signature(index_fill.outputs({same_tensor(0)})));

  server.apply(FrameText().call(3).storage(101).storage(102).whole(1).go_on(1));

  EXPECT_THAT(server.notices.back().results, ElementsAre(101));
  EXPECT_THAT(server.read(101, spec({2})).floats(), ElementsAre(1, 2));
}

TEST_F(FailStop, MemoryThatAKernelGrewBeforeItFailedIsGivenBack) {
  SignatureText relu(3, 3, "aten::relu", "out");
  relu.tensor("self", spec({4}), 0).tensor("out", spec({2}), 1).outputs({same_tensor(1)});
  server.apply(FrameText().go_on(1).store(1, {1, 2, 3, 4}).store(2, {8, 9}).signature(relu));
  const uint64_t before = server.interpreter.counters().storage_bytes;

  server.apply(FrameText().call(3).storage(1).storage(2).go_on(1));  // resizes it: not predicted

  EXPECT_EQ(server.interpreter.counters().storage_bytes, before);
  EXPECT_TRUE(server.read(2, spec({4})).failed) << "there is no more than the client knows of";
}

TEST_F(FailStop, FreesSignaturesAndResizesOfAStoppedThreadAreApplied) {
  server.apply(FrameText().signature(add_signature(3, 3, {1})).free({5}).resize(4, 8).go_on(1));
  EXPECT_THROW(server.read(5, spec({1})), ProtocolError);
  EXPECT_THAT(server.read(4, spec({2})).floats().at(0), 5);
}

TEST_F(FailStop, AResizeThatFailsStopsItsThread) {
  server.apply(FrameText().go_on(1).resize(4, uint64_t{1} << 47));
  ASSERT_EQ(server.notices.size(), 2);
  EXPECT_EQ(server.notices[1].operator_name, "resize");
}

TEST_F(FailStop, AThreadThatGoesOnCanFailAgain) {
  server.apply(FrameText().go_on(1));
  fail(6);
  ASSERT_EQ(server.notices.size(), 2);
  EXPECT_EQ(server.notices[1].call, 10);
}

// Promise 7.
TEST_F(FailStop, TooManyStoppedThreadsEndTheSession) {
  EXPECT_THROW(
      {
        for (uint64_t i = 0; i <= wire::kMaxStoppedThreads; ++i) {
          server.apply(FrameText().thread(2 + i));
          fail(1000 + i);
        }
      },
      ProtocolError);
}

TEST_F(FailStop, AMissingStorageThatIsFreedIsForgotten) {
  server.apply(FrameText().go_on(1).free({3}));
  server.apply(FrameText().call(1).storage(4).storage(5).whole(1));
  EXPECT_THAT(value_of(4), ElementsAre(12));
}

}  // namespace
}  // namespace torch_remote::server::testing
