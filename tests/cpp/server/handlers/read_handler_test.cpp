#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;

TEST(ReadHandler, AReadOfAViewGivesItsElementsInOrder) {
  Server server;
  server.apply(FrameText().store(1, {1, 2, 3, 4, 5, 6}));
  wire::TensorSpec column = spec({2});
  column.strides = {3};

  EXPECT_THAT(server.read(1, column, 1).floats(), ElementsAre(2, 5));
}

// Promise 5.
TEST(ReadHandler, AReadOutsideItsStorageIsAnError) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}));

  EXPECT_EQ(server.read(1, spec({2}), 1).error.kind, wire::ErrorKind::kRefused);
  EXPECT_EQ(server.read(1, spec({2}), UINT64_MAX / 2).error.kind, wire::ErrorKind::kRefused);
}

}  // namespace
}  // namespace torch_remote::server::testing
