#include "server/listener/session_program.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

TEST(SessionProgram, TheTokenIsNotAmongItsArguments) {
  ServeOptions options;
  options.token = "the token of this server";
  options.libraries = {"a.so", "b.so"};

  const SessionProgram program = session_program(options);

  EXPECT_THAT(program.arguments, Not(Contains(HasSubstr("token"))));
  EXPECT_THAT(program.arguments, Contains("a.so"));
  EXPECT_THAT(program.arguments, Contains("b.so"));
  EXPECT_THAT(program.arguments, Contains(kExecutedOption));
}

// Promise 14.
TEST(SessionProgram, OnlyVariablesThatSessionsNeedArePassedOn) {
  for (const char* name : {"HOME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LC_ALL",
                           "PYTORCH_CUDA_ALLOC_CONF", "TORCH_REMOTE_LOG", "LD_LIBRARY_PATH"})
    EXPECT_TRUE(is_for_sessions(name)) << name;
  for (const char* name : {"NVIDIA_API_KEY", "NCCL_NET_PLUGIN", "TORCH_SECRET", "CUDA_", "OMP_X"})
    EXPECT_FALSE(is_for_sessions(name)) << name;
  for (const char* name : {"PATH", "AWS_SECRET_ACCESS_KEY", "TORCH_REMOTE_TOKEN",
                           "TORCH_REMOTE_TOKEN_FILE", "SSH_AUTH_SOCK", "HOMEX", ""})
    EXPECT_FALSE(is_for_sessions(name)) << name;
}

}  // namespace
}  // namespace torch_remote::server
