#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;

TEST(StorageHandler, AFreeAppliesWhereItStands) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {2}).signature(add_signature(0, 0, {1})));

  server.apply(
      FrameText().call(0).storage(1).storage(2).real(1).output(3).free({1, 2}).store(1, {5}));

  EXPECT_THAT(server.read(3, spec({1})).floats(), ElementsAre(3));
  EXPECT_THAT(server.read(1, spec({1})).floats(), ElementsAre(5));
  EXPECT_EQ(server.interpreter.counters().storages, 2);
  EXPECT_EQ(server.interpreter.counters().storage_bytes, 8);
}

TEST(StorageHandler, ACallBehindTheFreeOfItsStorageIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1}).store(2, {2}).signature(add_signature(0, 0, {1})));

  EXPECT_THROW(
      server.apply(FrameText().free({1, 2}).call(0).storage(1).storage(2).real(1).output(3)),
      ProtocolError);
}

// Promise 6.
TEST(StorageHandler, AFreedNameIsUnknown) {
  Server server;
  server.apply(FrameText().store(1, {1}).free({1}));

  EXPECT_THROW(server.read(1, spec({1})), ProtocolError);
  EXPECT_THROW(server.apply(FrameText().free({1})), ProtocolError);
}

TEST(StorageHandler, AStorageKeepsItsBytesWhenItIsResized) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}).resize(1, 16));

  const auto values = server.read(1, spec({4})).floats();

  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
}

TEST(StorageHandler, ADeviceThatIsNotThereIsAProtocolError) {
  Server server(2);
  server.apply(FrameText().resize(1, 4, 1));
  EXPECT_THROW(server.apply(FrameText().resize(2, 4, 2)), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::server::testing
