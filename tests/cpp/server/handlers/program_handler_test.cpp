#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>

#include "base/error.h"
#include "server/support.h"
#include "wire/program.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using wire::ValueKind;

// The bytes of a PROGRAM, step by step.
class ProgramText {
 public:
  ProgramText(uint64_t program, std::vector<wire::ProgramStorage> storages)
      : program_(program), storages_(std::move(storages)) {}

  ProgramText& settings(const wire::Context& settings) {
    ++count_;
    wire::encode_step(steps_, settings);
    return *this;
  }

  ProgramText& call(uint32_t slot) {
    ++count_;
    wire::encode_step(steps_, slot, [] {});
    return *this;
  }

  ProgramText& storage(uint64_t number) {
    wire::encode_storage_slot(steps_, names_, number, 0);
    return *this;
  }

  ProgramText& output(uint64_t number) {
    wire::encode_name(steps_, names_, number);
    return *this;
  }

  ProgramText& whole(int64_t number) {
    steps_.zigzag(number);
    return *this;
  }

  ProgramText& real(double number) {
    steps_.f64(number);
    return *this;
  }

  friend void encode(wire::Writer& writer, const ProgramText& text) {
    wire::encode_program(writer, text.program_, text.storages_, text.count_,
                         [&](wire::NameState&) { writer.raw(text.steps_.view()); });
  }

 private:
  uint64_t program_;
  std::vector<wire::ProgramStorage> storages_;
  wire::Writer steps_;
  wire::NameState names_;
  uint64_t count_ = 0;
};

wire::ProgramStorage named(uint64_t name) {
  return {name, 0, 0};
}

wire::ProgramStorage temporary(uint64_t nbytes, uint8_t device = 0) {
  return {0, device, nbytes};
}

SignatureText add_in_place(uint32_t slot, uint32_t operation) {
  SignatureText add(slot, operation, "aten::add_", "Tensor");
  add.tensor("self", spec({1}), 0)
      .tensor("other", spec({1}), 1)
      .value("alpha", ValueKind::kScalarInt);
  return add.outputs({same_tensor(0)});
}

// The kernel finds that the index is out of range.
SignatureText index_select(uint32_t slot, uint32_t operation) {
  SignatureText text(slot, operation, "aten::index_select", "");
  text.tensor("self", spec({2}), 0)
      .integer("dim", 0)
      .tensor("index", spec({1}, wire::Dtype::kInt64), 1);
  return text.outputs({fresh(spec({1}))});
}

// Signature 0 is add with a fresh result, 1 add_, 2 index_select, all of one element. Storages
// 4 and 5 hold 5 and 7; storage 6 is empty; 8 holds 1 and 2, and 9 the index 1.
class ProgramHandlerTest : public ::testing::Test {
 protected:
  ProgramHandlerTest() {
    server.apply(FrameText()
                     .store(4, {5})
                     .store(5, {7})
                     .resize(6, 4)
                     .store(8, {1, 2})
                     .resize(9, 8)
                     .signature(add_signature(0, 0, {1}))
                     .signature(add_in_place(1, 1))
                     .signature(index_select(2, 2)));
    set_index(1);
  }

  void set_index(int64_t index) {
    wire::Begin begin;
    begin.upload = 1;
    begin.storage = 9;
    begin.bytes = std::as_bytes(std::span(&index, 1));
    begin.length = 8;
    begin.is_inline = true;
    server.apply(FrameText().message(begin));
  }

  void send(const ProgramText& text) { server.apply(FrameText().message(text)); }

  void run(uint64_t program, std::vector<wire::ChangedStorage> changed = {}) {
    server.apply(FrameText().message(wire::Run{program, std::move(changed)}));
  }

  void expect_refused(const ProgramText& text) { EXPECT_THROW(send(text), ProtocolError); }

  std::vector<float> value_of(uint64_t name) {
    const Reply reply = server.read(name, spec({1}));
    EXPECT_FALSE(reply.failed) << reply.error.message;
    return reply.floats();
  }

  Server server;
};

TEST_F(ProgramHandlerTest, NothingRunsBeforeARunAndEverythingInEachRun) {
  // 6 = (4 + 4) + 5, by a temporary; then 4 += 5.
  send(ProgramText(1, {named(4), named(5), temporary(4), named(6)})
           .call(0)
           .storage(0)
           .storage(0)
           .real(1)
           .output(2)
           .call(0)
           .storage(2)
           .storage(1)
           .real(1)
           .output(3)
           .call(1)
           .storage(0)
           .storage(1)
           .whole(1));
  EXPECT_THAT(value_of(4), ElementsAre(5));
  run(1);
  EXPECT_THAT(value_of(6), ElementsAre(17));
  EXPECT_THAT(value_of(4), ElementsAre(12));
  run(1);
  EXPECT_THAT(value_of(6), ElementsAre(31));
  EXPECT_THAT(value_of(4), ElementsAre(19));
}

TEST_F(ProgramHandlerTest, ARunCanGiveNumbersToOtherStorages) {
  send(ProgramText(1, {named(4), named(5)}).call(1).storage(0).storage(1).whole(1));
  server.apply(FrameText().store(10, {100}));
  run(1, {{0, 10}});
  run(1);
  EXPECT_THAT(value_of(10), ElementsAre(114));
  EXPECT_THAT(value_of(4), ElementsAre(5));
}

// 6 = 4 + 5
ProgramText add_to_new(uint64_t result) {
  return ProgramText(1, {named(4), named(5), named(result)})
      .call(0)
      .storage(0)
      .storage(1)
      .real(1)
      .output(2);
}

TEST_F(ProgramHandlerTest, ARunMakesAFreshOutputThatIsNotThere) {
  send(add_to_new(20));
  run(1);
  EXPECT_THAT(value_of(20), ElementsAre(12));
  run(1, {{2, 21}});
  run(1, {{0, 20}, {2, 22}});
  EXPECT_THAT(value_of(21), ElementsAre(12));
  EXPECT_THAT(value_of(22), ElementsAre(19));
  EXPECT_THAT(value_of(20), ElementsAre(12)) << "an output stays what it was over later runs";
}

TEST_F(ProgramHandlerTest, AFreshOutputOfADiscardedRunIsMissing) {
  send(add_to_new(20));
  set_index(7);
  server.apply(FrameText().call(2).storage(8).storage(9).output(11));
  run(1);
  server.apply(FrameText().go_on(1));
  EXPECT_TRUE(server.read(20, spec({1})).failed);
}

TEST_F(ProgramHandlerTest, OnlyFreshOutputsAreMadeByARun) {
  send(add_to_new(20));
  EXPECT_THROW(run(1, {{0, 77}}), ProtocolError);
}

TEST_F(ProgramHandlerTest, ViewsOfAShiftedStorageBeginElsewhereUntilItIsShiftedAgain) {
  send(add_to_new(20));
  run(1, {{0, 8, 4}});  // 8 holds 1 and 2
  EXPECT_THAT(value_of(20), ElementsAre(9));
  run(1, {{2, 21}});
  EXPECT_THAT(value_of(21), ElementsAre(9));
  run(1, {{0, 8}, {2, 22}});
  EXPECT_THAT(value_of(22), ElementsAre(8));
}

TEST_F(ProgramHandlerTest, AShiftOutsideItsStorageIsRefusedAndOneThatNoClientSendsEndsTheSession) {
  send(add_to_new(20));
  run(1, {{0, 8, 8}});
  ASSERT_EQ(server.notices.size(), 1);
  EXPECT_EQ(server.notices[0].kind, wire::ErrorKind::kRefused);
  server.apply(FrameText().go_on(1));
  EXPECT_THROW(run(1, {{0, 8, -4}}), ProtocolError);
  EXPECT_THROW(run(1, {{0, 8, 2}}), ProtocolError);
  EXPECT_THROW(run(1, {{0, 8, INT64_MIN}}), ProtocolError);
  EXPECT_THROW(run(1, {{0, 8, INT64_MAX}}), ProtocolError);
}

TEST_F(ProgramHandlerTest, ACallsPlanStaysWhenItsSlotGetsAnother) {
  send(ProgramText(1, {named(4), named(5)}).call(1).storage(0).storage(1).whole(1));
  SignatureText fill(1, 3, "aten::fill_", "Scalar");
  fill.tensor("self", spec({1}), 0).value("value", ValueKind::kScalarInt);
  server.apply(FrameText().signature(fill.outputs({same_tensor(0)})));
  run(1);
  EXPECT_THAT(value_of(4), ElementsAre(12));
}

TEST_F(ProgramHandlerTest, SettingsOfStepsEndWithTheRun) {
  wire::Context settings;
  settings.settings.push_back({wire::Setting::kDeterministic, 1});
  send(ProgramText(1, {named(4), named(5)})
           .settings(settings)
           .call(1)
           .storage(0)
           .storage(1)
           .whole(1));
  const bool before = at::globalContext().deterministicAlgorithms();
  run(1);
  EXPECT_EQ(at::globalContext().deterministicAlgorithms(), before);
  EXPECT_THAT(value_of(4), ElementsAre(12));
}

TEST_F(ProgramHandlerTest, AFailedStepEndsTheRunAndSaysWhichItWas) {
  // 4 += 5; 6 = 8[9]; 5 += 4
  send(ProgramText(1, {named(4), named(5), named(6), named(8), named(9)})
           .call(1)
           .storage(0)
           .storage(1)
           .whole(1)
           .call(2)
           .storage(3)
           .storage(4)
           .output(2)
           .call(1)
           .storage(1)
           .storage(0)
           .whole(1));
  set_index(7);
  run(1);
  ASSERT_EQ(server.notices.size(), 1);
  const wire::Error& error = server.notices[0];
  EXPECT_EQ(error.operator_name, "aten::index_select");
  EXPECT_EQ(error.program, 1);
  EXPECT_EQ(error.step, 1);
  EXPECT_THAT(error.results, ElementsAre(6));
  server.apply(FrameText().go_on(1));
  EXPECT_THAT(value_of(4), ElementsAre(12)) << "what a step before wrote stays";
  EXPECT_THAT(value_of(5), ElementsAre(7)) << "no later step has run";
  EXPECT_TRUE(server.read(6, spec({1})).failed);

  set_index(1);
  run(1);
  EXPECT_THAT(value_of(6), ElementsAre(2)) << "made again, it is not missing";
  EXPECT_EQ(server.notices.size(), 1);
}

TEST_F(ProgramHandlerTest, ARunOfAStoppedThreadIsDiscarded) {
  send(ProgramText(1, {named(4), named(5), named(10)})
           .call(1)
           .storage(0)
           .storage(1)
           .whole(1)
           .call(0)
           .storage(0)
           .storage(1)
           .real(1)
           .output(2));
  set_index(7);
  server.apply(FrameText().call(2).storage(8).storage(9).output(11).resize(10, 4));
  run(1);
  server.apply(FrameText().go_on(1));
  EXPECT_THAT(value_of(4), ElementsAre(5));
  EXPECT_TRUE(server.read(10, spec({1})).failed);
}

TEST_F(ProgramHandlerTest, ACancelledRunDoesNotBegin) {
  send(ProgramText(1, {named(4), named(5), named(10)})
           .call(1)
           .storage(0)
           .storage(1)
           .whole(1)
           .call(0)
           .storage(0)
           .storage(1)
           .real(1)
           .output(2));
  server.apply(FrameText().resize(10, 4));
  server.interpreter.cancel_to(1000);
  run(1);
  ASSERT_EQ(server.notices.size(), 1);
  EXPECT_EQ(server.notices[0].kind, wire::ErrorKind::kCancelled);
  server.apply(FrameText().go_on(1));
  EXPECT_EQ(server.read(10, spec({1})).error.kind, wire::ErrorKind::kCancelled);
  EXPECT_THAT(value_of(4), ElementsAre(5));
}

TEST_F(ProgramHandlerTest, ARunThatUsesWhatIsMissingStopsItsThreadAndRunsNothing) {
  set_index(7);
  server.apply(FrameText().call(2).storage(8).storage(9).output(11).go_on(1));
  send(ProgramText(1, {named(4), named(5), named(11)})
           .call(1)
           .storage(0)
           .storage(1)
           .whole(1)
           .call(1)
           .storage(1)
           .storage(2)
           .whole(1));
  run(1);
  EXPECT_EQ(server.notices.size(), 2);
  server.apply(FrameText().go_on(1));
  EXPECT_THAT(value_of(4), ElementsAre(5));
  EXPECT_THAT(value_of(5), ElementsAre(7));
}

TEST_F(ProgramHandlerTest, EveryRunChecksViewsAgainstStoragesAsTheyAreThen) {
  send(ProgramText(1, {named(8), named(9), named(6)}).call(2).storage(0).storage(1).output(2));
  server.apply(FrameText().resize(8, 4));  // one element, where the view has two
  run(1);
  ASSERT_EQ(server.notices.size(), 1);
  EXPECT_EQ(server.notices[0].kind, wire::ErrorKind::kRefused);
}

// Promise 5b.
TEST_F(ProgramHandlerTest, EveryRunChecksIndicesOfSparseTensorsAsTheyAreThen) {
  wire::SparseSpec sizes;
  sizes.layout = wire::Layout::kSparseCoo;
  sizes.sizes = {4};
  SignatureText to_dense(3, 3, "aten::_to_dense", "");
  to_dense.sparse("self", sizes).part(spec({1, 1}, wire::Dtype::kInt64), 0).part(spec({1}), 1);
  server.apply(FrameText().signature(to_dense.outputs({fresh(spec({4}))})));
  send(ProgramText(1, {named(9), named(4), named(6)}).call(3).storage(0).storage(1).output(2));
  run(1);
  EXPECT_THAT(server.read(6, spec({4})).floats(), ElementsAre(0, 5, 0, 0));
  for (const int64_t index : {int64_t{1} << 40, int64_t{-1}}) {
    set_index(index);
    run(1);
    ASSERT_EQ(server.notices.size(), 1);
    EXPECT_EQ(server.notices[0].operator_name, "aten::_to_dense");
    server.notices.clear();
    server.apply(FrameText().go_on(1));
  }
}

// Promise 5b.
TEST_F(ProgramHandlerTest, EveryRunChecksValuesThatAKernelTrusts) {
  SignatureText eigenvalues(3, 3, "aten::_linalg_eigvals", "");
  eigenvalues.tensor("self", spec({1, 1}), 0);
  const wire::Output output = fresh(spec({1}, wire::Dtype::kComplex64));
  server.apply(FrameText()
                   .store(20, {std::numeric_limits<float>::quiet_NaN()})
                   .signature(eigenvalues.outputs({output})));
  send(ProgramText(1, {named(4), named(6)}).call(3).storage(0).output(1));
  run(1);
  EXPECT_EQ(server.notices.size(), 0);
  run(1, {{0, 20}});
  ASSERT_EQ(server.notices.size(), 1);
  EXPECT_THAT(server.notices[0].message, ::testing::HasSubstr("infs or NaNs"));
}

TEST_F(ProgramHandlerTest, ADroppedProgramIsGoneAndItsNameFree) {
  const ProgramText text =
      ProgramText(1, {named(4), named(5)}).call(1).storage(0).storage(1).whole(1);
  send(text);
  const auto drop = [this] {
    FrameText frame;
    wire::encode_drop(frame.writer, 1);
    server.apply(frame);
  };
  drop();
  send(text);
  run(1);
  EXPECT_THAT(value_of(4), ElementsAre(12));
  drop();
  EXPECT_THROW(run(1), ProtocolError);
}

TEST_F(ProgramHandlerTest, AProgramWhoseStorageWasFreedCannotRun) {
  send(ProgramText(1, {named(4), named(5)}).call(1).storage(0).storage(1).whole(1));
  server.apply(FrameText().free({5}));
  EXPECT_THROW(run(1), ProtocolError);
}

TEST_F(ProgramHandlerTest, WhatNoClientSendsIsRefused) {
  expect_refused(ProgramText(1, {named(4)}).call(77));  // no signature
  expect_refused(ProgramText(1, {named(4)}).call(1).storage(0).storage(1).whole(1));  // no number 1
  expect_refused(ProgramText(1, {temporary(4, 5)}));                                  // no device 5
  const std::vector<wire::ProgramStorage> storages{named(4), named(6)};
  expect_refused(ProgramText(1, storages)
                     .call(0)
                     .storage(0)
                     .storage(1)
                     .real(1)
                     .output(1));  // makes what it reads
  expect_refused(
      ProgramText(1, storages).call(0).storage(0).storage(0).real(1).output(7));  // no number 7
  send(ProgramText(1, storages).call(0).storage(0).storage(0).real(1).output(1));
  expect_refused(ProgramText(1, storages));  // the name is taken
  EXPECT_THROW(run(1, {{9, 4}}), ProtocolError);
  EXPECT_THROW(run(1, {{0, 99}}), ProtocolError);
  EXPECT_THROW(run(2), ProtocolError);
}

TEST_F(ProgramHandlerTest, AStepWhoseOutputsOnlyTheServerKnowsIsRefused) {
  SignatureText nonzero(3, 3, "aten::nonzero", "");
  nonzero.tensor("self", spec({1}), 0);
  server.apply(FrameText().signature(nonzero));
  expect_refused(ProgramText(1, {named(4)}).call(3).storage(0));
}

TEST_F(ProgramHandlerTest, TheNumberOfProgramsIsLimited) {
  for (uint64_t i = 1; i <= wire::kMaxPrograms; ++i)
    send(ProgramText(i, {}));
  expect_refused(ProgramText(wire::kMaxPrograms + 1, {}));
}

TEST_F(ProgramHandlerTest, TheMemoryOfTemporariesIsGivenBack) {
  const auto held = [this] { return server.interpreter.counters().storage_bytes; };
  send(ProgramText(1, {named(4), temporary(4), temporary(4), named(6)})
           .call(0)
           .storage(0)
           .storage(0)
           .real(1)
           .output(1)
           .call(0)
           .storage(1)
           .storage(1)
           .real(1)
           .output(2)
           .call(0)
           .storage(2)
           .storage(1)
           .real(1)
           .output(3));
  run(1);
  const uint64_t before = held();
  for (int i = 0; i < 100; ++i)
    run(1);
  EXPECT_EQ(held(), before);
  EXPECT_THAT(value_of(6), ElementsAre(30));
}

}  // namespace
}  // namespace torch_remote::server::testing
