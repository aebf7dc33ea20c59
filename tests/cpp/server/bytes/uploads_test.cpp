#include "server/bytes/uploads.h"

#include <cstring>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/CPUAllocator.h>

#include "base/error.h"
#include "server/executor/storage_table.h"
#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::byte> begin_frame(uint64_t upload, uint64_t storage, uint64_t offset,
                                   uint64_t length) {
  wire::Writer writer;
  wire::Begin begin;
  begin.upload = upload;
  begin.storage = storage;
  begin.offset = offset;
  begin.length = length;
  encode(writer, begin);
  return writer.take();
}

void arrive(Uploads& uploads, uint64_t lane, uint64_t offset, const std::vector<float>& values,
            bool last) {
  const auto bytes = std::as_bytes(std::span(values));
  const auto target = uploads.target(lane, offset, bytes.size());
  std::memcpy(target.data(), bytes.data(), bytes.size());
  uploads.received(lane, bytes.size(), last);
}

TEST(Uploads, AWholeUploadBecomesTheStoragesMemoryWithoutACopy) {
  const c10::InferenceMode inference_mode;
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams);
  Entry& entry = storages.make(1, 8, c10::Device(c10::kCPU), 0, {});
  uploads.expect_from(begin_frame(7, 1, 0, 8));
  const std::byte* const staged = uploads.target(7, 0, 8).data();
  arrive(uploads, 7, 0, {1, 2}, true);

  storages.expect_upload(entry, 0, uploads.take(7, 8));
  storages.prepare(entry, false);
  const at::Tensor tensor = storages.resolve(entry, marshal::make_tensor_recipe(spec({2})), 0);

  EXPECT_EQ(tensor.const_data_ptr(), staged);
  EXPECT_EQ(tensor.sum().item<float>(), 3);
}

constexpr uint64_t kBlock = uint64_t{1} << 20;  // enough to be kept

at::Tensor whole(StorageTable& storages, Entry& entry) {
  storages.prepare(entry, false);
  const auto view = spec({static_cast<int64_t>(entry.nbytes / 4)});
  return storages.resolve(entry, marshal::make_tensor_recipe(view), 0);
}

// An upload of all of a storage; returns where the bytes were received.
const std::byte* upload_all(Uploads& uploads, StorageTable& storages, Entry& entry, uint64_t lane,
                            float value) {
  uploads.expect_from(begin_frame(lane, 1, 0, entry.nbytes));
  const std::byte* const target = uploads.target(lane, 0, entry.nbytes).data();
  arrive(uploads, lane, 0, std::vector<float>(entry.nbytes / 4, value), true);
  storages.expect_upload(entry, 0, uploads.take(lane, entry.nbytes));
  storages.write_arrived();
  return target;
}

TEST(Uploads, TheMemoryThatAnUploadReplacesTakesTheNextOne) {
  const c10::InferenceMode inference_mode;
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams);
  Entry& entry = storages.make(1, kBlock, c10::Device(c10::kCPU), 0, {1, 1});
  const std::byte* const first = upload_all(uploads, storages, entry, 7, 1);
  const std::byte* const second = upload_all(uploads, storages, entry, 8, 2);

  EXPECT_NE(second, first);
  EXPECT_EQ(upload_all(uploads, storages, entry, 9, 3), first);
  EXPECT_EQ(upload_all(uploads, storages, entry, 10, 4), second);
  EXPECT_EQ(whole(storages, entry).min().item<float>(), 4);
  EXPECT_EQ(uploads.memory().kept_bytes(), kBlock);
  storages.free(1);
  EXPECT_EQ(uploads.memory().kept_bytes(), 2 * kBlock);
  uploads.memory().empty();
  EXPECT_EQ(uploads.memory().kept_bytes(), 0);
}

TEST(Uploads, MemoryThatSomethingElseUsesIsNotReceivedInto) {
  const c10::InferenceMode inference_mode;
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams);
  Entry& entry = storages.make(1, kBlock, c10::Device(c10::kCPU), 0, {1, 1});
  upload_all(uploads, storages, entry, 7, 1);
  const at::Tensor before = whole(storages, entry);

  upload_all(uploads, storages, entry, 8, 2);
  upload_all(uploads, storages, entry, 9, 3);

  EXPECT_EQ(before.min().item<float>(), 1);
  EXPECT_EQ(before.max().item<float>(), 1);
  EXPECT_EQ(whole(storages, entry).min().item<float>(), 3);
}

TEST(Uploads, KeptMemoryIsBoundedAndGivenUpForStorages) {
  const c10::InferenceMode inference_mode;
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams, {.bytes = 3 * kBlock});
  Entry& entry = storages.make(1, kBlock, c10::Device(c10::kCPU), 0, {1, 1});
  for (uint64_t lane = 7; lane < 12; ++lane)
    upload_all(uploads, storages, entry, lane, 1);
  EXPECT_EQ(uploads.memory().kept_bytes(), kBlock);

  Entry& other = storages.make(2, 2 * kBlock, c10::Device(c10::kCPU), 0, {1, 2});
  whole(storages, other);

  EXPECT_EQ(uploads.memory().kept_bytes(), 0);
  storages.free(2);
  EXPECT_EQ(uploads.memory().kept_bytes(), 0);  // its memory did not come from an upload
}

// A block is used for uploads that are up to an eighth smaller, again and again.
TEST(Uploads, ABlockThatIsUsedAgainCountsWithItsWholeSize) {
  const c10::InferenceMode inference_mode;
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams, {.bytes = 20 * kBlock});
  Entry& large = storages.make(1, 9 * kBlock, c10::Device(c10::kCPU), 0, {1, 1});
  const std::byte* const block = upload_all(uploads, storages, large, 7, 1);
  storages.free(1);
  EXPECT_EQ(uploads.memory().kept_bytes(), 9 * kBlock);
  Entry& small = storages.make(2, 8 * kBlock, c10::Device(c10::kCPU), 0, {1, 2});

  EXPECT_EQ(upload_all(uploads, storages, small, 8, 2), block);

  EXPECT_EQ(storages.account().totals().held, 9 * kBlock);
  EXPECT_EQ(storages.account().totals().bytes, 8 * kBlock);
  storages.free(2);
  EXPECT_EQ(storages.account().totals().held, 0);
  EXPECT_EQ(uploads.memory().kept_bytes(), 9 * kBlock);
}

TEST(UploadMemory, OutlivesItsSession) {
  auto memory = std::make_unique<UploadMemory>(false);
  c10::Storage storage = memory->allocate(kBlock);
  memory.reset();
  static_cast<std::byte*>(storage.mutable_data())[kBlock - 1] = std::byte{1};
}

TEST(Uploads, OnesThatOverlapInTimeAreWrittenInTheOrderOfTheirBegins) {
  Server server;
  server.apply(FrameText().resize(1, 16));
  const auto all = begin_frame(7, 1, 0, 16);
  const auto part = begin_frame(8, 1, 4, 8);
  const auto again = begin_frame(9, 1, 0, 4);
  for (const auto* frame : {&all, &part, &again})
    server.uploads.expect_from(*frame);
  arrive(server.uploads, 9, 0, {5}, true);  // the last to begin arrives first
  arrive(server.uploads, 8, 0, {6}, false);
  arrive(server.uploads, 7, 0, {1, 2, 3, 4}, true);
  server.interpreter.apply(all);
  server.interpreter.apply(part);
  server.interpreter.write_arrived();
  arrive(server.uploads, 8, 4, {7}, true);
  server.interpreter.apply(again);

  EXPECT_THAT(server.read(1, spec({4})).floats(), ElementsAre(5, 6, 7, 4));
}

TEST(Uploads, AnUploadToAPartIsCopiedAsItArrives) {
  const c10::InferenceMode inference_mode;
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams);
  Entry& entry = storages.make(1, 16, c10::Device(c10::kCPU), 0, {1, 1});
  uploads.expect_from(begin_frame(7, 1, 8, 8));
  storages.expect_upload(entry, 8, uploads.take(7, 8));
  arrive(uploads, 7, 0, {3}, false);
  storages.write_arrived();

  EXPECT_EQ(entry.upload_written, 4);
  EXPECT_EQ(static_cast<const float*>(entry.storage.data())[2], 3);
  arrive(uploads, 7, 4, {4}, true);
  EXPECT_EQ(whole(storages, entry)[3].item<float>(), 4);
}

// The processor's allocator for as long as it lives: has no memory.
class NoMemory : public c10::Allocator {
 public:
  NoMemory() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, kPriority); }

  ~NoMemory() override { c10::SetCPUAllocator(before_, kPriority); }

  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(false, "can't allocate memory: you tried to allocate ", bytes, " bytes");
  }

  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}

 private:
  static constexpr uint8_t kPriority = 100;

  c10::Allocator* const before_;
};

TEST(Uploads, OneThatThereIsNoMemoryForIsMissingAndTheNextIsGood) {
  Server server;
  server.apply(FrameText().resize(1, 8).resize(2, 8));
  const auto lost = begin_frame(7, 1, 0, 8);
  const auto good = begin_frame(8, 2, 0, 8);
  {
    const NoMemory no_memory;
    server.uploads.expect_from(lost);
  }
  arrive(server.uploads, 7, 0, {1}, false);
  server.uploads.expect_from(good);
  server.interpreter.apply(lost);
  server.apply(FrameText().go_on(1));
  arrive(server.uploads, 8, 0, {3, 4}, true);
  server.interpreter.apply(good);
  arrive(server.uploads, 7, 4, {2}, true);

  const Reply failed = server.read(1, spec({2}));
  EXPECT_TRUE(failed.failed);
  EXPECT_EQ(failed.error.kind, wire::ErrorKind::kOutOfMemory);
  EXPECT_THAT(server.read(2, spec({2})).floats(), ElementsAre(3, 4));
}

TEST(Uploads, BytesMayComeBeforeOrAfterTheExecutorGetsToTheBegin) {
  Server server;
  server.apply(FrameText().resize(1, 16));
  const auto frame = begin_frame(7, 1, 8, 8);
  server.uploads.expect_from(frame);
  arrive(server.uploads, 7, 0, {3}, false);
  server.interpreter.apply(frame);
  server.apply(FrameText().resize(2, 4));  // what does not touch the storage does not wait
  std::thread reader([&] { arrive(server.uploads, 7, 4, {4}, true); });

  const auto values = server.read(1, spec({2}), 2).floats();

  reader.join();
  EXPECT_THAT(values, ElementsAre(3, 4));
}

TEST(Uploads, AnUploadThatIsNeverFinishedEndsTheWait) {
  Server server;
  server.apply(FrameText().resize(1, 8));
  const auto frame = begin_frame(7, 1, 0, 8);
  server.uploads.expect_from(frame);
  server.interpreter.apply(frame);
  server.uploads.end();

  EXPECT_THROW(server.read(1, spec({2})), ConnectionError);
}

TEST(Uploads, AFreedStorageDoesNotWaitForItsUpload) {
  Server server;
  server.apply(FrameText().resize(1, 8));
  const auto frame = begin_frame(7, 1, 0, 8);
  server.uploads.expect_from(frame);
  server.interpreter.apply(frame);

  server.apply(FrameText().free({1}));
  arrive(server.uploads, 7, 0, {1, 2}, true);

  EXPECT_EQ(server.interpreter.counters().storages, 0);
}

TEST(Uploads, BytesOutOfPlaceAreAProtocolError) {
  Uploads uploads;
  EXPECT_THROW(uploads.target(1, 0, 4), ProtocolError);
  uploads.expect_from(begin_frame(1, 1, 0, 8));
  EXPECT_THROW(uploads.target(1, 4, 4), ProtocolError);
  EXPECT_THROW(uploads.target(1, 0, 9), ProtocolError);
  EXPECT_THROW(uploads.expect_from(begin_frame(1, 1, 0, 8)), ProtocolError);
  uploads.target(1, 0, 4);
  EXPECT_THROW(uploads.received(1, 4, true), ProtocolError);
}

TEST(Uploads, MoreThanTheLimitIsAProtocolErrorBeforeItIsAllocated) {
  Uploads uploads;
  EXPECT_THROW(uploads.expect_from(begin_frame(1, 1, 0, kMaxStagedBytes + 1)), ProtocolError);
}

TEST(Uploads, ABulkBeginThatIsNotFirstInItsFrameIsAProtocolError) {
  Server server;
  server.apply(FrameText().resize(1, 8));
  EXPECT_THROW(server.interpreter.apply(begin_frame(7, 1, 0, 8)), ProtocolError);
}

// The upload goes to a part of a storage without memory: it must fail at its begin, not at a read.
TEST(Uploads, WithoutMemoryForItsStorageAnUploadFailsWhereItBegins) {
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams);
  Entry& entry = storages.make(1, 16, c10::Device(c10::kCPU), 0, {});
  uploads.expect_from(begin_frame(7, 1, 0, 8));
  auto staging = uploads.take(7, 8);
  {
    const NoMemory none;
    EXPECT_ANY_THROW(storages.expect_upload(entry, 0, std::move(staging)));
  }
  EXPECT_EQ(entry.upload, nullptr);
}

TEST(StorageTable, AResizeWithoutMemoryChangesNothing) {
  const c10::InferenceMode inference_mode;
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams, {.bytes = 64});
  Entry& entry = storages.make(1, 16, c10::Device(c10::kCPU), 0, {});
  whole(storages, entry);
  {
    const NoMemory none;
    EXPECT_ANY_THROW(storages.resize(entry, 48));
  }
  EXPECT_EQ(storages.account().totals().held, 16);
  EXPECT_EQ(storages.account().totals().bytes, 16);
}

}  // namespace
}  // namespace torch_remote::server::testing
