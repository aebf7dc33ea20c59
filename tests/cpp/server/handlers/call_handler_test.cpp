#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Promise 6.
TEST(CallHandler, NameZeroIsNeverValid) {
  Server server;
  SignatureText zero(0, 0, "aten::zero_", "");
  zero.tensor("self", spec({1}), 0, {4}).outputs({same_tensor(0)});

  EXPECT_THROW(server.apply(FrameText().signature(zero).call(0).storage(0)), ProtocolError);
}

// Promise 6.
TEST(CallHandler, ALiveNameCannotBeMadeAgain) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {1}).signature(add_signature(0, 0, {1})));

  EXPECT_THROW(server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(1)),
               ProtocolError);
}

// make, view, run, free, replay
TEST(CallHandler, ASignatureReplayedOnAFreedStorageIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {2}).signature(add_signature(0, 0, {1})));
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(3));
  server.apply(FrameText().free({1}));

  EXPECT_THROW(server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(4)),
               ProtocolError);
}

// Promise 5.
TEST(CallHandler, ASignatureReplayedOnASmallerStorageIsRefused) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).store(2, {3, 4}).signature(add_signature(0, 0, {2})));
  server.apply(FrameText().call(0).storage(1).storage(2).real(1).output(3));

  server.apply(FrameText().resize(1, 4).call(0).storage(1).storage(2).real(1).output(4).go_on(1));
  server.apply(FrameText().store(5, {1}).call(0).storage(2).storage(5).real(1).output(6).go_on(1));

  EXPECT_THAT(server.read(3, spec({2})).floats(), ElementsAre(4, 6));
  EXPECT_EQ(server.read(4, spec({2})).error.kind, wire::ErrorKind::kRefused);
  EXPECT_EQ(server.read(6, spec({2})).error.kind, wire::ErrorKind::kRefused);
}

TEST(CallHandler, ACopyIsCheckedAtBothEnds) {
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

TEST(CallHandler, ACallWithoutItsSignatureIsAProtocolError) {
  Server server;
  EXPECT_THROW(server.apply(FrameText().call(3)), ProtocolError);
}

TEST(CallHandler, OperatorsOutsideTheAllowListAreRefusedInPlaceOfTheirResults) {
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

}  // namespace
}  // namespace torch_remote::server::testing
