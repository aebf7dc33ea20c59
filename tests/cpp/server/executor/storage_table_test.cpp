#include "server/executor/storage_table.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>

#include "base/error.h"
#include "server/executor/entry.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ThrowsMessage;

const c10::Device kCpu(c10::kCPU);

class StorageTableTest : public ::testing::Test {
 protected:
  at::Tensor resolve(Entry& entry, const wire::TensorSpec& view, uint64_t offset = 0) {
    return storages.resolve(entry, marshal::make_tensor_recipe(view), offset);
  }

  at::Tensor floats(Entry& entry) {
    storages.prepare(entry, false);
    return resolve(entry, spec({static_cast<int64_t>(entry.nbytes / sizeof(float))}));
  }

  // A storage with the values 0, 1, 2 …
  Entry& counting(uint64_t name, int64_t count) {
    Entry& entry = storages.make(name, count * sizeof(float), kCpu, 0, {});
    at::Tensor values = floats(entry);
    at::arange_out(values, count);
    return entry;
  }

  std::shared_ptr<const Pin> pinned(Entry& entry) {
    storages.prepare(entry, true);
    floats(entry);
    return pin(entry);
  }

  // Sends all bytes of the storage, as BEGIN does.
  void upload_all(Entry& entry, const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    wire::Begin begin;
    begin.upload = ++uploads_begun_;
    begin.storage = 1;
    begin.length = bytes.size();
    wire::Writer writer;
    encode(writer, begin);
    uploads.expect_from(writer.view());
    std::memcpy(uploads.target(begin.upload, 0, bytes.size()).data(), bytes.data(), bytes.size());
    uploads.received(begin.upload, bytes.size(), true);
    storages.expect_upload(entry, 0, uploads.take(begin.upload, bytes.size()));
  }

  const c10::InferenceMode inference_mode;
  Uploads uploads;
  Devices devices{c10::kCPU, 1};
  Streams streams{devices};
  StorageTable storages{uploads, streams};

 private:
  uint64_t uploads_begun_ = 0;
};

TEST_F(StorageTableTest, MemoryIsAllocatedAtFirstUse) {
  Entry& entry = storages.make(1, 8, kCpu, 0, {});
  EXPECT_FALSE(entry.storage);
  EXPECT_EQ(storages.account().totals().bytes, 8);

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
  EXPECT_EQ(storages.account().totals().bytes, 0);
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

// Note [Pinned storages].

TEST_F(StorageTableTest, APinnedStorageIsChangedInPlaceAndItsReplyHasTheOldValues) {
  Entry& entry = counting(1, 3);
  const auto held = pinned(entry);
  const void* const memory = entry.storage.data();

  const at::Tensor sent = for_reply(entry, floats(entry));
  const auto token = storages.reply_token(entry, sent.nbytes());
  storages.prepare(entry, true);
  floats(entry).fill_(7);

  EXPECT_EQ(entry.storage.data(), memory);
  EXPECT_EQ(floats(entry).sum().item<float>(), 21);
  EXPECT_EQ(sent.sum().item<float>(), 3);
}

TEST_F(StorageTableTest, APinnedStorageGivesNoTokenForItsOwnMemory) {
  Entry& entry = counting(1, 3);
  const auto held = pinned(entry);
  EXPECT_THROW(storages.reply_token(entry, 0), InternalError);
}

TEST_F(StorageTableTest, AReplyFromBeforeTheStorageWasPinnedHasTheOldValues) {
  Entry& entry = counting(1, 3);
  const at::Tensor sent = floats(entry);
  const auto token = storages.reply_token(entry, 0);

  const auto held = pinned(entry);
  const void* const memory = entry.storage.data();
  storages.prepare(entry, true);
  floats(entry).fill_(7);

  EXPECT_EQ(entry.storage.data(), memory);
  EXPECT_EQ(sent.sum().item<float>(), 3);
}

TEST_F(StorageTableTest, AnUploadOfAllOfAPinnedStorageIsCopiedIntoIt) {
  Entry& entry = counting(1, 3);
  upload_all(entry, {1, 1, 1});  // is put in its place, by prepare()
  const auto held = pinned(entry);
  const void* const memory = entry.storage.data();
  EXPECT_EQ(floats(entry).sum().item<float>(), 3);

  upload_all(entry, {5, 6, 7});
  EXPECT_EQ(floats(entry).sum().item<float>(), 18);
  upload_all(entry, {8, 8, 8});
  storages.write_arrived();

  EXPECT_EQ(entry.storage.data(), memory);
  EXPECT_EQ(floats(entry).sum().item<float>(), 24);
}

TEST_F(StorageTableTest, AnUploadThatBeganWhileTheStorageWasPinnedIsCopied) {
  Entry& entry = counting(1, 3);
  auto held = pinned(entry);
  const void* const memory = entry.storage.data();

  upload_all(entry, {5, 6, 7});
  held.reset();

  EXPECT_EQ(floats(entry).sum().item<float>(), 18);
  EXPECT_EQ(entry.storage.data(), memory);
}

TEST_F(StorageTableTest, APinnedStorageIsResizedInTheMemoryThatItHas) {
  Entry& entry = counting(1, 4);
  const auto held = pinned(entry);
  const void* const memory = entry.storage.data();

  storages.resize(entry, 8);
  EXPECT_EQ(floats(entry).sum().item<float>(), 1);
  EXPECT_THROW(resolve(entry, spec({3})), Refused);
  EXPECT_EQ(storages.account().totals().bytes, 8);
  EXPECT_EQ(storages.account().totals().held, 16);
  storages.resize(entry, 0);
  storages.resize(entry, 16);

  EXPECT_EQ(floats(entry).sum().item<float>(), 6);
  EXPECT_EQ(entry.storage.data(), memory);
}

TEST_F(StorageTableTest, APinnedStorageIsNotResizedBeyondItsMemory) {
  Entry& entry = counting(1, 2);
  const auto held = pinned(entry);
  const void* const memory = entry.storage.data();

  EXPECT_THAT([&] { storages.resize(entry, 12); },
              ThrowsMessage<Refused>("a storage of 8 bytes cannot get 12: its memory must stay "
                                     "where it is, and has 8 bytes"));
  EXPECT_THROW(floats(entry).resize_({3}), c10::Error);  // as a kernel would

  EXPECT_EQ(entry.storage.data(), memory);
  EXPECT_EQ(floats(entry).sum().item<float>(), 1);
}

TEST_F(StorageTableTest, AStorageMovesAgainWhenNobodyPinsIt) {
  Entry& entry = counting(1, 3);
  auto first = pinned(entry);
  auto second = pinned(entry);
  first.reset();
  EXPECT_TRUE(entry.is_pinned());
  storages.resize(entry, 8);
  second.reset();

  EXPECT_FALSE(entry.is_pinned());
  storages.resize(entry, 16);
  EXPECT_EQ(storages.account().totals().held, 16);
  EXPECT_EQ(resolve(entry, spec({2})).sum().item<float>(), 1);
  floats(entry).resize_({5});  // as a kernel would
  storages.settle_growth(entry, true);
  EXPECT_EQ(entry.nbytes, 20);
}

TEST_F(StorageTableTest, AFreedStorageIsPinnedNoMore) {
  const auto held = pinned(counting(1, 3));
  storages.free(1);
  EXPECT_EQ(storages.account().totals().held, 0);
  EXPECT_FALSE(counting(1, 3).is_pinned());
}

}  // namespace
}  // namespace torch_remote::server::testing
