#include "server/device/out_of_memory.h"

#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

TEST(OutOfMemory, ItIsDescribedInTheWordsOfCudasAllocator) {
  EXPECT_EQ(describe_shortage("CPU", {3ULL << 29, 2ULL << 30, 20 << 20, 1024, 3072}),
            "CPU out of memory. Tried to allocate 1.50 GiB. The server has a total capacity of "
            "2.00 GiB of which 20.00 MiB is free. Of the allocated memory 1024 bytes is allocated "
            "by tensors, and 2.00 KiB is reserved but unallocated.");
  EXPECT_EQ(describe_shortage("CUDA", {}).find("Tried"), std::string::npos);
}

TEST(OutOfMemory, WhatPyTorchsAllocatorWantedIsReadFromItsText) {
  EXPECT_EQ(wanted_bytes("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 "
                         "bytes. Error code 12"),
            4096);
  EXPECT_EQ(wanted_bytes("another text"), 0);
}

TEST(OutOfMemory, WhatCudasAllocatorWantedAndWhatWasFreeAreReadFromItsText) {
  const auto shortage = read_shortage(
      "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.80 GiB of "
      "which 20.25 MiB is free.");
  ASSERT_TRUE(shortage.has_value());
  EXPECT_EQ(shortage->wanted, 3ULL << 29);
  EXPECT_EQ(shortage->free, 81ULL << 18);
  const auto unknown =
      read_shortage("CUDA out of memory. Tried to allocate nothing of which -1 GiB");
  ASSERT_TRUE(unknown.has_value());
  EXPECT_EQ(unknown->wanted, 0);
  EXPECT_EQ(unknown->free, 0);
  EXPECT_FALSE(read_shortage("DefaultCPUAllocator: you tried to allocate 4096 bytes").has_value());
}

TEST(OutOfMemory, ALimitThatIsReachedIsPyTorchsErrorAndHasTheBytes) {
  try {
    throw LimitReached("CPU out of memory.", {200, 100, 40, 60, 60});
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "CPU out of memory.");
    const auto* const limit = dynamic_cast<const LimitReached*>(&error);
    ASSERT_NE(limit, nullptr);
    EXPECT_EQ(limit->wanted(), 200);
    EXPECT_EQ(limit->free(), 40);
  }
}

TEST(OutOfMemory, FiguresOfTheHostAreReadOrZero) {
  EXPECT_GT(host_figure("MemTotal:"), 0);
  EXPECT_EQ(host_figure("NoSuchLine:"), 0);
}

}  // namespace
}  // namespace torch_remote::server
