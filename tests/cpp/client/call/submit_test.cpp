#include "client/call/submit.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>

#include "../session_fixture.h"
#include "base/hash.h"
#include "client/memory/storage.h"

namespace torch_remote::client {
namespace {

using ::testing::ElementsAre;
using wire::Tag;

const c10::Device kDevice(c10::kPrivateUse1, 0);

wire::TensorSpec four_floats() {
  wire::TensorSpec spec;
  spec.sizes = {4};
  spec.strides = {1};
  return spec;
}

// Sends aten::relu of a tensor as dispatch() does.
class SubmitTest : public testing::SessionTest {
 protected:
  void SetUp() override {
    before_ = record_lookup;
    record_lookup.deleter = &delete_record;
    c10::SetAllocator(c10::kPrivateUse1, c10::GetCPUAllocator());  // there must be one
    connect();
  }

  void TearDown() override { record_lookup = before_; }

  at::Tensor remote_tensor(bool announced) {
    StorageRecord* const record = make_record(session, 0, 0, 16);
    record->announced = announced;
    return tensor_on(record, four_floats(), 16, kDevice);
  }

  void capture(const at::Tensor& tensor) {
    arguments_ = {tensor};
    capture_.begin(info_.id, info_.name.c_str(), 0, arguments_);
    capture_.add(info_.arguments[0], arguments_[0]);
    capture_.finish();
  }

  SignaturePtr find_signature() {
    const uint64_t hash = hash_bytes(capture_.key());
    const SignaturePtr known = session.order().with_signatures(
        [&](SignatureTable& table) { return table.find(hash, capture_.key()); });
    if (known)
      return known;
    auto made = c10::make_intrusive<Signature>();
    made->key.assign(capture_.key().begin(), capture_.key().end());
    made->hash = hash;
    made->operation = &info_;
    made->outputs_known = true;
    made->outputs.push_back({wire::OutputKind::kFresh, four_floats(), 0, 0, {}});
    finish_signature(*made);
    return made;
  }

  bool send() {
    SignaturePtr signature = find_signature();
    Outputs outputs(*signature, capture_, kDevice, {&session, 0});
    return send_call(session, signature, capture_, outputs, arguments_, {}, nullptr);
  }

  bool call(const at::Tensor& tensor) {
    capture(tensor);
    return send();
  }

  // The messages that the server has received, up to a RESIZE that is sent now.
  std::vector<Tag> tags() {
    submit(1000 + ++marks_);
    session.link().flush();
    std::vector<Tag> tags;
    for (size_t count = 1; tags.empty() || std::ranges::count(tags, Tag::kResize) < marks_;
         ++count) {
      tags.clear();
      for (const testing::Message& message : server.wait_for_messages(count))
        tags.push_back(message.tag);
    }
    return tags;
  }

  const OperatorInfo& info_ =
      operator_info(c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", ""));
  RecordLookup before_;
  Capture capture_;
  std::vector<c10::IValue> arguments_;
  int64_t marks_ = 0;
};

TEST_F(SubmitTest, ACallSendsItsSignatureOnceAndTheContextWhenItChanges) {
  const at::Tensor x = remote_tensor(true);
  EXPECT_TRUE(call(x));
  std::vector<Tag> first = tags();
  std::erase(first, Tag::kFree);  // of the outputs, which nobody holds
  EXPECT_EQ(first.front(), Tag::kSignature);
  EXPECT_EQ(std::ranges::count(first, Tag::kCall), 1);

  EXPECT_TRUE(call(x));
  const bool fills = at::globalContext().deterministicFillUninitializedMemory();
  at::globalContext().setDeterministicFillUninitializedMemory(!fills);
  EXPECT_TRUE(call(x));
  at::globalContext().setDeterministicFillUninitializedMemory(fills);
  std::vector<Tag> all = tags();
  std::erase(all, Tag::kFree);
  EXPECT_THAT(std::vector(all.begin() + static_cast<int64_t>(first.size()), all.end()),
              ElementsAre(Tag::kCall, Tag::kContext, Tag::kCall, Tag::kResize));
}

TEST_F(SubmitTest, ACallThatIsNotSentGivesItsNamesBack) {
  const at::Tensor x = remote_tensor(false);
  capture(x);
  record_of(x)->announced = true;  // another thread was first, so the key is no longer true
  const uint64_t live = RecordPool::instance().live();
  EXPECT_FALSE(send());
  EXPECT_EQ(RecordPool::instance().live(), live);
  EXPECT_THAT(tags(), ElementsAre(Tag::kResize));
  EXPECT_TRUE(call(x));
}

}  // namespace
}  // namespace torch_remote::client
