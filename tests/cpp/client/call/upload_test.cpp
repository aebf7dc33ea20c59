#include "client/call/upload.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include "../session_fixture.h"
#include "client/call/outputs.h"
#include "client/memory/storage.h"
#include "wire/limits.h"
#include "wire/upload_cache.h"

namespace torch_remote::client {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = wire::kMinCachedUpload + 1;

// A session with a server that has a cache of uploads.
class UploadTest : public testing::SessionTest {
 protected:
  void SetUp() override {
    before_ = record_lookup;
    record_lookup.deleter = &delete_record;
    c10::SetAllocator(c10::kPrivateUse1, c10::GetCPUAllocator());  // there must be one
    testing::let_in(server.stream(), wire::kCapabilities | wire::kUploadCacheCapability);
    server.start();
    session.welcome();
  }

  void TearDown() override { record_lookup = before_; }

  at::Tensor remote_tensor() {
    wire::TensorSpec spec;
    spec.dtype = wire::Dtype::kUint8;
    spec.sizes = {kBytes};
    spec.strides = {1};
    StorageRecord* const record = make_record(session, 0, 0, kBytes);
    record->announced = true;
    return tensor_on(record, spec, kBytes, {c10::kPrivateUse1, 0});
  }

  // Uploads to a server that answers its queries so. Returns the error.
  std::string error_after(const std::vector<testing::Bytes>& answers) {
    std::thread answering([&] {
      for (size_t i = 0; i < answers.size(); ++i)
        server.reply(server.wait_for_messages(i + 1).back().number, answers[i]);
    });
    const at::Tensor destination = remote_tensor();
    std::string error = testing::error_of([&] { upload(destination, value_, false); });
    answering.join();
    return error;
  }

  testing::Bytes list_with_value() const {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(value_.const_data_ptr()),
                                           kBytes);
    return testing::body_of(std::vector<wire::CachedEntry>{{wire::sha256(bytes), kBytes}});
  }

  const at::Tensor value_ = at::zeros({kBytes}, at::kByte);
  RecordLookup before_;
};

TEST_F(UploadTest, WhatTheServerHasIsNotSent) {
  EXPECT_EQ(error_after({list_with_value(), testing::bytes_of("\1")}), "(no error)");
  for (const testing::Message& message : server.wait_for_messages(2))
    EXPECT_NE(message.tag, wire::Tag::kBegin);
  EXPECT_FALSE(session.link().is_lost());
}

// Promise 7b.
TEST_F(UploadTest, AListThatIsNoneEndsTheSession) {
  EXPECT_THAT(error_after({testing::bytes_of("\xff")}), HasSubstr("is lost: protocol: "));
  EXPECT_TRUE(session.link().is_lost());
}

// Promise 7b.
TEST_F(UploadTest, AnAnswerThatIsTooLongEndsTheSession) {
  EXPECT_THAT(error_after({list_with_value(), testing::bytes_of("\1\1")}),
              HasSubstr("is lost: protocol: "));
  EXPECT_TRUE(session.link().is_lost());
}

}  // namespace
}  // namespace torch_remote::client
