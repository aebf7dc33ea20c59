#include "client/call/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../session_fixture.h"

namespace torch_remote::client::testing {
namespace {

using ::testing::HasSubstr;

class FilesTest : public SessionTest {
 protected:
  void connect_with_files() {
    transport::Stream& stream = server.stream();
    wire::Hello hello = server_hello("", read_client_hello(stream));
    hello.capabilities |= wire::kFilesCapability;
    send_block(stream, body_of(hello));
    wire::decode_proof(read_block(stream));
    send_block(stream, body_of(a_welcome()));
    server.start();
    session.welcome();
  }

  // The error where the server gives this answer to everything.
  std::string error_of_list(const Bytes& answer) {
    return error_with_answers(answer, [&] { list_files({&session, 0}); });
  }
};

TEST_F(FilesTest, AServerWithoutTheOptionIsAskedNothing) {
  connect();
  EXPECT_THAT(error_of([&] { list_files({&session, 0}); }), HasSubstr("--files DIR"));
  EXPECT_THAT(error_of([&] {
                const RemoteFile file({&session, 0}, 0, "a", wire::FileForm::kBytes);
              }),
              HasSubstr("--files DIR"));
}

// Promise 7b.
TEST_F(FilesTest, AServerThatListsForEverIsLeft) {
  connect_with_files();
  EXPECT_THAT(error_of_list(body_of(std::vector<wire::ListedFile>{{"a", 1}, {"b", 2}})),
              HasSubstr("not in the order of their names"));
  EXPECT_TRUE(session.link().is_lost());
}

// Promise 7b.
TEST_F(FilesTest, AListThatIsNoneEndsTheSession) {
  connect_with_files();
  EXPECT_THAT(error_of_list(bytes_of("\xff")), HasSubstr("protocol"));
  EXPECT_TRUE(session.link().is_lost());
}

// Promise 7b.
TEST_F(FilesTest, WhatAServerSaysIsInAFileIsChecked) {
  connect_with_files();
  // As a file it has 1 byte, 1 tensor and no shard; as a tensor it is too short.
  const std::string error = error_with_answers(bytes_of(std::string_view("\x01\x01\x00", 3)), [&] {
    const RemoteFile file({&session, 0}, 0, "a", wire::FileForm::kTensors);
    file.tensors();
  });
  EXPECT_THAT(error, HasSubstr("protocol"));
  EXPECT_TRUE(session.link().is_lost());
}

}  // namespace
}  // namespace torch_remote::client::testing
