#include "server/executor/execute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/support.h"
#include "wire/limits.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::ErrorKind;
using wire::ValueKind;

TEST(Execute, ACallComputesAndStoresUnderTheClientsName) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).store(2, {10, 20}));

  server.apply(FrameText()
                   .signature(add_signature(0, 0, {2}))
                   .call(0)
                   .storage(1)
                   .storage(2)
                   .real(2)
                   .output(3));

  EXPECT_THAT(server.read(3, spec({2})).floats(), ElementsAre(21, 42));
  EXPECT_EQ(server.interpreter.counters().mispredicted, 0);
}

TEST(Execute, AStorageIsMadeByTheCallThatMentionsItFirst) {
  Server server;
  SignatureText fill(0, 0, "aten::fill_", "Scalar");
  fill.tensor("self", spec({3}), 0, {12})
      .value("value", ValueKind::kScalarInt)
      .outputs({same_tensor(0)});

  server.apply(FrameText().signature(fill).call(0).storage(1).whole(4));

  EXPECT_THAT(server.read(1, spec({3})).floats(), ElementsAre(4, 4, 4));
}

TEST(Execute, OtherStridesThanPredictedAreMendedAndCounted) {
  Server server;
  wire::TensorSpec transposed = spec({2, 2});
  transposed.strides = {1, 2};
  SignatureText add(0, 0, "aten::add", "Tensor");
  add.tensor("self", spec({2, 2}), 0).tensor("other", spec({2, 2}), 0);
  add.value("alpha", ValueKind::kScalarInt).outputs({fresh(transposed)});

  server.apply(FrameText()
                   .store(1, {1, 2, 3, 4})
                   .signature(add)
                   .call(0)
                   .storage(1)
                   .offset(0)
                   .whole(1)
                   .output(2));

  EXPECT_EQ(server.interpreter.counters().mispredicted, 1);
  EXPECT_THAT(server.read(2, transposed).floats(), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(server.read(2, spec({4})).floats(), ElementsAre(2, 6, 4, 8));
}

TEST(Execute, AnOutputThatIsAViewOfItsInputGetsAStorageOfItsOwn) {
  Server server;
  SignatureText view(0, 0, "aten::_unsafe_view", "");
  view.tensor("self", spec({4}), 0).integers("size", {2, 2}).outputs({fresh(spec({2, 2}))});
  SignatureText zero(1, 1, "aten::zero_", "");
  zero.tensor("self", spec({4}), 0).outputs({same_tensor(0)});
  server.apply(FrameText().store(1, {1, 2, 3, 4}).signature(view).signature(zero));

  server.apply(FrameText().call(0).storage(1).output(2).call(1).storage(1));

  EXPECT_EQ(server.interpreter.counters().mispredicted, 1);
  EXPECT_THAT(server.read(2, spec({4})).floats(), ElementsAre(1, 2, 3, 4));
}

TEST(Execute, AnotherSizeThanPredictedIsPoisonThatSaysSo) {
  Server server;
  SignatureText add = add_signature(0, 0, {2});
  add.outputs({fresh(spec({3}))});
  server.apply(FrameText().store(1, {1, 2}).store(2, {1, 2}).signature(add));

  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(3));

  const Reply reply = server.read(3, spec({3}));
  ASSERT_TRUE(reply.failed);
  EXPECT_THAT(reply.error.message, HasSubstr("the client had predicted"));
}

TEST(Execute, AnOutWhoseShapeWasMispredictedIsPoison) {
  Server server;
  SignatureText relu(0, 0, "aten::relu", "out");
  relu.tensor("self", spec({4}), 0).tensor("out", spec({2}), 1, {8}).outputs({same_tensor(1)});

  server.apply(FrameText().store(1, {1, 2, 3, 4}).signature(relu).call(0).storage(1).storage(2));

  EXPECT_TRUE(server.read(2, spec({2})).failed);
}

TEST(Execute, AViewThatIsNotInsideItsStorageFailsTheCallAndTheSessionGoesOn) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).store(2, {1, 2}).signature(add_signature(0, 0, {2})));

  server.apply(FrameText().call(0).storage(1, 1).storage(2).real(1).output(3).go_on(1));

  const Reply reply = server.read(3, spec({2}));
  ASSERT_TRUE(reply.failed);
  EXPECT_EQ(reply.error.kind, ErrorKind::kRefused);
  EXPECT_FALSE(server.read(1, spec({2})).failed);
}

// Promise 5.
TEST(Execute, ACachedSignatureIsCheckedAgainstAStorageThatHasShrunk) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).store(2, {1, 2}).signature(add_signature(0, 0, {2})));
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(3));

  server.apply(FrameText().resize(1, 4).call(0).storage(1).storage(2).real(1).output(4).go_on(1));

  EXPECT_FALSE(server.read(3, spec({2})).failed);
  EXPECT_EQ(server.read(4, spec({2})).error.kind, ErrorKind::kRefused);
}

TEST(Execute, AQueriedCallTellsItsResults) {
  Server server;
  SignatureText nonzero(0, 0, "aten::nonzero", "");
  nonzero.tensor("self", spec({3}), 0);
  server.apply(FrameText().store(1, {0, 5, 6}).signature(nonzero));

  const auto replies = server.apply(FrameText().query_call(9, 0, 20, 4).storage(1));

  ASSERT_EQ(replies.size(), 1);
  ASSERT_FALSE(replies[0].failed);
  wire::Reader reader(replies[0].body);
  const auto results = wire::decode_results(reader);
  ASSERT_EQ(results.size(), 1);
  EXPECT_EQ(results[0].kind, wire::ResultKind::kFresh);
  EXPECT_THAT(results[0].spec.sizes, ElementsAre(2, 1));
  EXPECT_EQ(server.read(20, results[0].spec).body.size(), 16);
}

TEST(Execute, AQueriedCallTellsHowItResizedItsOut) {
  Server server;
  SignatureText nonzero(0, 0, "aten::nonzero", "out");
  nonzero.tensor("self", spec({3}), 0);
  nonzero.tensor("out", spec({1}, wire::Dtype::kInt64), 1);
  server.apply(FrameText().store(1, {0, 5, 6}).store(2, {0, 0}).signature(nonzero));

  const auto replies = server.apply(FrameText().query_call(9, 0, 20, 4).storage(1).storage(2));

  ASSERT_FALSE(replies.at(0).failed);
  wire::Reader reader(replies[0].body);
  const auto results = wire::decode_results(reader);
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].kind, wire::ResultKind::kTensor);
  const wire::Result& resized = results[1].items.at(0);
  EXPECT_EQ(resized.tensor, 1);
  EXPECT_THAT(resized.spec.sizes, ElementsAre(2, 1));
  EXPECT_EQ(resized.nbytes, 16);
  EXPECT_EQ(server.read(2, resized.spec).body.size(), 16);
}

TEST(Execute, AQueriedNumberComesBackAsOne) {
  Server server;
  SignatureText item(0, 0, "aten::_local_scalar_dense", "");
  item.tensor("self", spec({}), 0);

  const auto replies =
      server.apply(FrameText().store(1, {2.5}).signature(item).query_call(9, 0, 20, 4).storage(1));

  wire::Reader reader(replies.at(0).body);
  EXPECT_EQ(wire::decode_results(reader).at(0).real, 2.5);
}

}  // namespace
}  // namespace torch_remote::server::testing
