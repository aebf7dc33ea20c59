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

TEST(OutOfMemory, FiguresOfTheHostAreReadOrZero) {
  EXPECT_GT(host_figure("MemTotal:"), 0);
  EXPECT_EQ(host_figure("NoSuchLine:"), 0);
}

}  // namespace
}  // namespace torch_remote::server
