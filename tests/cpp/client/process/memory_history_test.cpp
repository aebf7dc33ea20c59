#include "client/process/memory_history.h"

#include <gtest/gtest.h>

namespace torch_remote::client {
namespace {

using enum MemoryEventKind;

// Turns recording off at the end of a test.
class MemoryHistoryTest : public testing::Test {
 protected:
  ~MemoryHistoryTest() override { history_.set({}); }

  void record(uint64_t max_events, std::array<bool, kMemoryEventKinds> skipped = {}) {
    HistoryOptions options;
    options.is_on = true;
    options.stacks = RecordedStacks::kFreed;
    options.max_events = max_events;
    options.skipped = skipped;
    history_.set(options);
  }

  std::vector<MemoryEventKind> kinds(uint8_t device = 0) {
    std::vector<MemoryEventKind> found;
    for (const MemoryEvent& event : history_.events(this, device))
      found.push_back(event.kind);
    return found;
  }

  void make(StorageRecord& record, uint64_t address, uint64_t bytes) {
    record.session = this;
    record.address = address;
    record.nbytes = bytes;
    history_.note_made(record);
  }

  MemoryHistory& history_ = MemoryHistory::instance();
};

TEST_F(MemoryHistoryTest, NothingIsNeededWhileItIsOff) {
  EXPECT_FALSE(MemoryHistory::is_needed());
  record(10);
  EXPECT_TRUE(MemoryHistory::is_needed());
}

TEST_F(MemoryHistoryTest, AStorageIsASegmentOfItsOwn) {
  record(10);
  StorageRecord storage;
  make(storage, 512, 100);
  history_.note_freed(storage, 512, 100);
  EXPECT_EQ(kinds(),
            (std::vector{kSegmentAlloc, kAlloc, kFreeRequested, kFreeCompleted, kSegmentFree}));
  const std::vector<MemoryEvent> events = history_.events(this, 0);
  EXPECT_EQ(events[0].bytes, 512);
  EXPECT_EQ(events[1].bytes, 100);
  EXPECT_TRUE(kinds(1).empty());
}

TEST_F(MemoryHistoryTest, TheLastEventsAreKeptAndSkippedOnesAreNot) {
  std::array<bool, kMemoryEventKinds> skipped{};
  skipped[static_cast<size_t>(kSegmentAlloc)] = true;
  record(2, skipped);
  StorageRecord storage;
  for (uint64_t i = 1; i <= 3; ++i)
    make(storage, i * 512, i);
  const std::vector<MemoryEvent> events = history_.events(this, 0);
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].bytes, 2);
  EXPECT_EQ(events[1].bytes, 3);
  for (uint64_t i = 1; i <= 3; ++i)
    history_.note_freed(storage, i * 512, i);
}

TEST_F(MemoryHistoryTest, StacksOfLiveStoragesStayUntilTheyAreFreed) {
  record(10);
  StorageRecord storage;
  make(storage, 1024, 8);
  history_.set({});
  EXPECT_TRUE(kinds().empty());
  EXPECT_NE(history_.stack_of(1024), nullptr);
  EXPECT_TRUE(MemoryHistory::is_needed());
  history_.note_freed(storage, 1024, 8);
  EXPECT_EQ(history_.stack_of(1024), nullptr);
  EXPECT_FALSE(MemoryHistory::is_needed());
}

TEST_F(MemoryHistoryTest, OutOfMemoryHasTheSizesOfTheServersError) {
  record(10);
  wire::Error error;
  error.wanted = 3ULL << 29;
  error.free = 81ULL << 18;
  history_.note_out_of_memory(this, 0, error, 0);
  history_.note_out_of_memory(this, 0, wire::Error(), 0);
  const std::vector<MemoryEvent> events = history_.events(this, 0);
  EXPECT_EQ(events[0].bytes, 3ULL << 29);
  EXPECT_EQ(events[0].address, 81ULL << 18);
  EXPECT_EQ(events[1].bytes, 0);
  EXPECT_EQ(events[1].address, 0);
}

}  // namespace
}  // namespace torch_remote::client
