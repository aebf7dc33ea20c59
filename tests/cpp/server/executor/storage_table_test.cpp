#include "server/executor/storage_table.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

const c10::Device kCpu(c10::kCPU);

class StorageTableTest : public ::testing::Test {
 protected:
  at::Tensor resolve(Entry& entry, const wire::TensorSpec& view, uint64_t offset = 0) {
    return storages.resolve(entry, marshal::make_tensor_recipe(view), offset);
  }

  const c10::InferenceMode inference_mode;
  Uploads uploads;
  Devices devices{c10::kCPU, 1};
  Streams streams{devices};
  StorageTable storages{uploads, streams};
};

TEST_F(StorageTableTest, MemoryIsAllocatedAtFirstUse) {
  Entry& entry = storages.make(1, 8, kCpu, 0, {});
  EXPECT_FALSE(entry.storage);
  EXPECT_EQ(storages.totals().bytes, 8);

  resolve(entry, spec({2}));

  EXPECT_EQ(entry.storage.nbytes(), 8);
}

TEST_F(StorageTableTest, AViewInsideIsMadeWithItsSizesStridesAndOffset) {
  Entry& entry = storages.make(1, 24, kCpu, 0, {});
  wire::TensorSpec view = spec({2});
  view.strides = {3};

  const at::Tensor tensor = resolve(entry, view, 2);

  EXPECT_EQ(tensor.strides(), c10::IntArrayRef({3}));
  EXPECT_EQ(tensor.storage_offset(), 2);
}

// Promise 5.
TEST_F(StorageTableTest, AViewPastTheEndIsRefused) {
  Entry& entry = storages.make(1, 24, kCpu, 0, {});
  wire::TensorSpec view = spec({2});
  view.strides = {3};

  EXPECT_THROW(resolve(entry, view, 3), Refused);
  EXPECT_THROW(resolve(entry, spec({7})), Refused);
}

// Promise 5.
TEST_F(StorageTableTest, OffsetsThatOverflowAreRefused) {
  Entry& entry = storages.make(1, 8, kCpu, 0, {});
  EXPECT_THROW(resolve(entry, spec({1}), UINT64_MAX), Refused);
  EXPECT_THROW(resolve(entry, spec({1}), UINT64_MAX / 4), Refused);
  EXPECT_THROW(resolve(entry, spec({1}), UINT64_MAX / 4 + 1), Refused);
  EXPECT_THROW(resolve(entry, spec({0}), UINT64_MAX), Refused);
}

TEST_F(StorageTableTest, ATensorWithoutElementsMayBeginAnywhere) {
  Entry& entry = storages.make(1, 0, kCpu, 0, {});
  EXPECT_EQ(resolve(entry, spec({0, 5}), 5).numel(), 0);
}

TEST_F(StorageTableTest, TheSameViewAgainIsTheSameTensorAndAnotherIsNot) {
  Entry& entry = storages.make(1, 16, kCpu, 0, {});
  const at::Tensor first = resolve(entry, spec({2}));

  EXPECT_TRUE(resolve(entry, spec({2})).is_same(first));
  EXPECT_FALSE(resolve(entry, spec({2}), 1).is_same(first));
  EXPECT_FALSE(resolve(entry, spec({2}, wire::Dtype::kInt32)).is_same(first));
}

TEST_F(StorageTableTest, AWrappedNumberIsNeverTheTensorOfAnotherCall) {
  Entry& entry = storages.make(1, 4, kCpu, 0, {});
  wire::TensorSpec wrapped = spec({});
  wrapped.wrapped = true;

  EXPECT_TRUE(resolve(entry, wrapped).unsafeGetTensorImpl()->is_wrapped_number());
  EXPECT_FALSE(resolve(entry, spec({})).unsafeGetTensorImpl()->is_wrapped_number());
}

TEST_F(StorageTableTest, ConjugateAndNegativeBitsAreSet) {
  Entry& entry = storages.make(1, 16, kCpu, 0, {});
  wire::TensorSpec view = spec({1}, wire::Dtype::kComplex64);
  view.conj = true;
  EXPECT_TRUE(resolve(entry, view).is_conj());
  view.conj = false;
  view.neg = true;
  EXPECT_TRUE(resolve(entry, view).is_neg());
  EXPECT_FALSE(resolve(entry, view).is_conj());
}

TEST_F(StorageTableTest, NamesAreUniqueKnownAndNeverZero) {
  storages.make(1, 4, kCpu, 0, {});
  EXPECT_THROW(storages.make(1, 4, kCpu, 0, {}), ProtocolError);
  EXPECT_THROW(storages.make(0, 4, kCpu, 0, {}), ProtocolError);
  EXPECT_THROW(storages.find(2), ProtocolError);
  storages.free(1);
  EXPECT_THROW(storages.find(1), ProtocolError);
  EXPECT_THROW(storages.free(1), ProtocolError);
  EXPECT_EQ(storages.totals().bytes, 0);
}

TEST_F(StorageTableTest, AStorageThatIsBeingSentGoesOnInACopyWhenItIsWritten) {
  Entry& entry = storages.make(1, 8, kCpu, 0, {});
  at::Tensor sent = resolve(entry, spec({2}));
  sent.fill_(1);
  const auto token = storages.reply_token(entry, 0);

  storages.prepare(entry, true);
  resolve(entry, spec({2})).fill_(2);

  EXPECT_EQ(sent.sum().item<float>(), 2);
  EXPECT_EQ(resolve(entry, spec({2})).sum().item<float>(), 4);
}

TEST_F(StorageTableTest, AStorageThatHasBeenSentIsWrittenInPlace) {
  Entry& entry = storages.make(1, 8, kCpu, 0, {});
  const at::Tensor sent = resolve(entry, spec({2}));
  storages.reply_token(entry, 0);

  storages.prepare(entry, true);

  EXPECT_TRUE(resolve(entry, spec({2})).is_same(sent));
}

}  // namespace
}  // namespace torch_remote::server::testing
