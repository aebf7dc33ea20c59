#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "server/executor/failures.h"

namespace torch_remote::server {
namespace {

constexpr int kIllegalAddress = 700;  // CUDA's code: the device is lost

template <typename Exception>
wire::Error describe(const Exception& error) {
  return describe_any_failure(std::make_exception_ptr(error), "process group");
}

TEST(Errors, WhatEndsASessionElsewhereIsAnErrorInAThreadThatCannotEndIt) {
  const std::exception_ptr protocol = std::make_exception_ptr(ProtocolError("too many"));
  EXPECT_THROW(describe_failure(protocol, "process group"), ProtocolError);
  EXPECT_EQ(describe(ProtocolError("too many")).message, ProtocolError("too many").what());
  EXPECT_EQ(describe(ConnectionError("gone")).message, ConnectionError("gone").what());
  EXPECT_EQ(describe(std::runtime_error("other")).message, "other");
  EXPECT_EQ(describe(std::runtime_error("other")).operator_name, "process group");
}

TEST(Errors, ALostDeviceIsAnErrorThereToo) {
  const c10::AcceleratorError lost({__func__, __FILE__, __LINE__}, kIllegalAddress, "bad address");
  EXPECT_THROW(describe_failure(std::make_exception_ptr(lost), "process group"), DeviceLost);
  const wire::Error error = describe(lost);
  EXPECT_EQ(error.kind, wire::ErrorKind::kAccelerator);
  EXPECT_EQ(error.message, "bad address");
}

}  // namespace
}  // namespace torch_remote::server
