#include "client/memory/storage.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/session/session.h"

namespace torch_remote::client {
namespace {

// A session that is never connected, because records need one to be freed to. Never destroyed.
Session& session() {
  static auto* made = [] {
    Endpoint endpoint;
    endpoint.url = "nowhere";
    endpoint.open = []() -> std::unique_ptr<transport::Stream> {
      while (true)
        std::this_thread::sleep_for(std::chrono::hours(1));
    };
    return new Session(std::move(endpoint));
  }();
  return *made;
}

StorageRecord* make(uint64_t nbytes) {
  return RecordPool::instance().make(session().order().new_names().storages(), &session(), 0,
                                     nbytes);
}

// What the writer thread does with the storages that were let go.
void collect_freed() {
  uint32_t calls = 0;
  session().order().take_frame(calls);
}

uint64_t address_of(const StorageRecord* record) {
  return record->address.load();
}

TEST(RecordPool, RangesOfAddressesAreAlignedDisjointAndUnmappable) {
  constexpr uint64_t kFirst = 1ULL << 60;
  std::vector<StorageRecord*> records;
  for (uint64_t nbytes : {0, 1, 511, 512, 513, 4096, 0, 1 << 20})
    records.push_back(make(nbytes));

  for (size_t i = 0; i < records.size(); ++i) {
    const uint64_t first = address_of(records[i]);
    EXPECT_GE(first, kFirst);
    EXPECT_EQ(first % 512, 0);
    for (size_t j = 0; j < i; ++j) {
      const uint64_t other = address_of(records[j]);
      // The address behind the end belongs to a range too: PyTorch makes such pointers.
      EXPECT_TRUE(first > other + records[j]->nbytes || other > first + records[i]->nbytes);
    }
  }
  for (StorageRecord* record : records)
    delete_record(record);
}

TEST(RecordPool, ARecordIsFoundByEveryAddressOfItsRange) {
  StorageRecord* record = make(1000);
  StorageRecord* empty = make(0);
  const uint64_t first = address_of(record);
  RecordPool& pool = RecordPool::instance();

  EXPECT_EQ(pool.find(first), record);
  EXPECT_EQ(pool.find(first + 500), record);
  EXPECT_EQ(pool.find(first + 1000), record);
  EXPECT_EQ(pool.find(address_of(empty)), empty);

  delete_record(record);
  delete_record(empty);
}

TEST(RecordPool, AddressesThatAreNobodysAreNotFound) {
  StorageRecord* record = make(100);
  RecordPool& pool = RecordPool::instance();
  EXPECT_EQ(pool.find(0), nullptr);
  EXPECT_EQ(pool.find(reinterpret_cast<uint64_t>(&pool)), nullptr);
  EXPECT_EQ(pool.find(address_of(record) + 101), nullptr);
  EXPECT_EQ(pool.find(UINT64_MAX), nullptr);
  delete_record(record);
}

TEST(RecordPool, AStorageThatWasLetGoIsNotFoundAndNotCounted) {
  RecordPool& pool = RecordPool::instance();
  const uint64_t live = pool.live();
  StorageRecord* record = make(100);
  const uint64_t address = address_of(record);
  EXPECT_EQ(pool.live(), live + 1);

  delete_record(record);

  EXPECT_EQ(pool.live(), live);
  EXPECT_EQ(pool.find(address), nullptr);
}

TEST(RecordPool, AnOutputOfACallThatIsNotWrittenYetIsNotAnnouncedByAnother) {
  RecordPool& pool = RecordPool::instance();
  StorageRecord* empty = make(64);
  StorageRecord* output = make_record(session(), 0, 0, 64, 0, RecordPool::kToBeWritten);

  const std::vector<StorageRecord*> found = pool.unannounced(&session(), 0);

  EXPECT_NE(std::ranges::find(found, empty), found.end());
  EXPECT_EQ(std::ranges::find(found, output), found.end());
  output->note_made(7, 1);
  EXPECT_EQ(output->made_by.load(), 7U);
  delete_record(empty);
  delete_record(output);
}

TEST(RecordPool, ARecordIsUsedAgainButNotItsAddressNorItsName) {
  collect_freed();
  StorageRecord* record = make(64);
  record->announced.store(true);
  const uint64_t address = address_of(record);
  const uint64_t name = record->name;
  delete_record(record);
  collect_freed();

  StorageRecord* next = make(64);

  EXPECT_EQ(next, record);
  EXPECT_GT(address_of(next), address);
  EXPECT_NE(next->name, name);
  EXPECT_FALSE(next->announced.load());
  EXPECT_EQ(RecordPool::instance().find(address), nullptr);
  delete_record(next);
}

TEST(RecordPool, ARecordIsNotUsedAgainBeforeItsSessionHasSeenItFreed) {
  StorageRecord* record = make(64);
  delete_record(record);
  StorageRecord* next = make(64);
  EXPECT_NE(next, record);
  delete_record(next);
  collect_freed();
}

TEST(RecordPool, AStorageThatGrowsGetsARangeOfItsOwn) {
  RecordPool& pool = RecordPool::instance();
  StorageRecord* record = make(64);
  StorageRecord* neighbour = make(64);
  const uint64_t old = address_of(record);

  record->nbytes.store(1 << 20);
  record->address.store(pool.new_address(1 << 20));

  EXPECT_EQ(pool.find(old), nullptr);
  EXPECT_EQ(pool.find(address_of(record) + (1 << 20)), record);
  EXPECT_EQ(pool.find(address_of(neighbour)), neighbour);
  delete_record(record);
  delete_record(neighbour);
}

TEST(RecordPool, ThreadsThatMakeAndFreeAtOnceNeverShareAnAddress) {
  constexpr size_t kThreads = 8;
  constexpr size_t kEach = 3000;
  std::vector<std::vector<uint64_t>> addresses(kThreads);
  std::vector<std::thread> threads;
  for (auto& seen : addresses) {
    threads.emplace_back([&seen] {
      for (size_t i = 0; i < kEach; ++i) {
        StorageRecord* record = make(i % 2000);
        seen.push_back(address_of(record));
        delete_record(record);
        if (i % 100 == 0)
          collect_freed();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();

  std::vector<uint64_t> all;
  for (const auto& seen : addresses)
    all.insert(all.end(), seen.begin(), seen.end());
  std::ranges::sort(all);
  EXPECT_EQ(all.size(), kThreads * kEach);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
}

}  // namespace
}  // namespace torch_remote::client
