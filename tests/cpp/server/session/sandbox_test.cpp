#include "server/session/sandbox.h"

#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

TEST(Sandbox, AnEmptyOrNegativeListOfVisibleDevicesHidesEveryGpu) {
  EXPECT_TRUE(hides_every_gpu(""));
  EXPECT_TRUE(hides_every_gpu("-1"));
  EXPECT_TRUE(hides_every_gpu("-1,0"));
}

TEST(Sandbox, AListThatBeginsWithADeviceOrNoListHidesNotAll) {
  EXPECT_FALSE(hides_every_gpu(nullptr));
  EXPECT_FALSE(hides_every_gpu("0"));
  EXPECT_FALSE(hides_every_gpu("1,-1"));
  EXPECT_FALSE(hides_every_gpu("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"));
}

}  // namespace
}  // namespace torch_remote::server
