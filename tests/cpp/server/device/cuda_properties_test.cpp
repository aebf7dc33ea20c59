#include "server/device/cuda_properties.h"

#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

// No device has this number, and on most machines there is no driver to ask either.
constexpr int kNoDevice = 1 << 20;

TEST(CudaPropertiesTest, WhatTheDriverDoesNotSayIsNotInvented) {
  wire::DeviceProperties properties;
  properties.name = "as it was";
  describe_cuda_device(kNoDevice, properties);
  EXPECT_EQ(properties.name, "as it was");
  EXPECT_EQ(properties.total_memory, 0U);
  EXPECT_EQ(properties.major, 0U);
  EXPECT_EQ(properties.minor, 0U);
  EXPECT_EQ(properties.multi_processors, 0U);
}

}  // namespace
}  // namespace torch_remote::server
