#include <gtest/gtest.h>

#include "base/error.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

// Promise 5.
TEST(UploadHandler, AnUploadOutsideItsStorageIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}));

  EXPECT_THROW(server.apply(FrameText().upload(1, {1, 2}, 4)), ProtocolError);
}

TEST(UploadHandler, AnUploadWhoseOffsetAndLengthOverflowIsAProtocolError) {
  Server server;
  server.apply(FrameText().store(1, {1, 2}));

  EXPECT_THROW(server.apply(FrameText().upload(1, {1, 2}, UINT64_MAX - 3)), ProtocolError);
  EXPECT_THROW(server.apply(FrameText().upload(1, {1, 2}, uint64_t{1} << 63)), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::server::testing
