#include "server/cache/cache_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/cache/temporary_folder.h"

namespace torch_remote::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::of_size;
using testing::TemporaryFolder;

constexpr wire::Digest kOwner{std::byte{1}};
constexpr wire::Digest kOther{std::byte{2}};
constexpr uint64_t kBlock = 4096;
constexpr uint64_t kLimit = 10 * kBlock;

class CacheFolderTest : public ::testing::Test {
 protected:
  CacheFolder opened(uint64_t limit = kLimit, const wire::Digest& owner = kOwner) const {
    return {CacheFolder::open(folder_.path), owner, limit, 1};
  }

  uint64_t usage() const {
    uint64_t bytes = UINT64_MAX;
    std::ifstream(folder_.path / "usage").read(reinterpret_cast<char*>(&bytes), sizeof bytes);
    return bytes;
  }

  // Saves `bytes`; false: there was no room.
  static bool save(CacheFolder& cache, const std::vector<std::byte>& bytes) {
    auto saving = cache.begin(bytes.size());
    if (!saving)
      return false;
    EXPECT_TRUE(CacheFolder::add(*saving, bytes));
    cache.finish(std::move(*saving));
    return true;
  }

  // Makes an entry the one that was used `seconds` after all others.
  void use_at(const std::vector<std::byte>& bytes, int seconds) const {
    const fs::path file = folder_.path / to_hex(kOwner) / to_hex(wire::sha256(bytes));
    fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::seconds(seconds));
  }

  uint64_t bytes_on_disk() const {
    uint64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path))
      if (entry.is_regular_file() && entry.path().filename() != "usage")
        bytes += entry.file_size();
    return bytes;
  }

  std::string refusal() const {
    try {
      CacheFolder::open(folder_.path);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryFolder folder_{"cache-folder"};
};

TEST_F(CacheFolderTest, WhatIsSavedIsFoundByItsHash) {
  CacheFolder cache = opened();
  const auto first = of_size(100, 1);
  const auto second = of_size(50, 2);
  EXPECT_TRUE(save(cache, first) && save(cache, second));
  use_at(first, 10);
  CacheFolder later = opened();
  EXPECT_THAT(later.list(), ElementsAre(wire::CachedEntry{wire::sha256(first), 100},
                                        wire::CachedEntry{wire::sha256(second), 50}));
  EXPECT_TRUE(later.find(wire::sha256(first)));
  EXPECT_FALSE(later.find(wire::sha256(of_size(1, 3))));
  later.remove(wire::sha256(first));
  EXPECT_FALSE(later.find(wire::sha256(first)));
}

// Promise 7d.
TEST_F(CacheFolderTest, AnotherOwnerFindsNothing) {
  CacheFolder cache = opened();
  const auto bytes = of_size(100, 1);
  EXPECT_TRUE(save(cache, bytes));
  CacheFolder other = opened(kLimit, kOther);
  EXPECT_FALSE(other.find(wire::sha256(bytes)));
  other.remove(wire::sha256(bytes));
  EXPECT_TRUE(other.list().empty());
  EXPECT_EQ(cache.list().size(), 1);
}

TEST_F(CacheFolderTest, TheLeastRecentlyUsedMakesRoom) {
  for (const int i : {0, 1, 2}) {
    CacheFolder cache = opened(kLimit, i == 0 ? kOwner : kOther);
    EXPECT_TRUE(save(cache, of_size(3 * kBlock, i)));
  }
  use_at(of_size(3 * kBlock, 0), 10);
  CacheFolder cache = opened();
  EXPECT_TRUE(save(cache, of_size(3 * kBlock, 3)));
  EXPECT_TRUE(cache.find(wire::sha256(of_size(3 * kBlock, 0))));
  EXPECT_TRUE(cache.find(wire::sha256(of_size(3 * kBlock, 3))));
  EXPECT_LE(bytes_on_disk(), 9 * kBlock);
}

// Promise 7d.
TEST_F(CacheFolderTest, OneSessionAddsAtMostHalfOfTheLimit) {
  CacheFolder cache = opened();
  EXPECT_FALSE(save(cache, of_size(5 * kBlock + 1, 1)));
  EXPECT_TRUE(save(cache, of_size(3 * kBlock, 1)));
  EXPECT_FALSE(save(cache, of_size(3 * kBlock, 2)));
  EXPECT_TRUE(save(cache, of_size(2 * kBlock, 3)));
}

// Or one client could fill the disk with files that count as nothing.
TEST_F(CacheFolderTest, AnUploadThatIsTooShortIsNotKept) {
  CacheFolder cache(CacheFolder::open(folder_.path), kOwner, kLimit, 100);
  EXPECT_FALSE(cache.begin(0));
  EXPECT_FALSE(cache.begin(99));
  EXPECT_EQ(bytes_on_disk(), 0);
  EXPECT_TRUE(cache.begin(100));
}

TEST_F(CacheFolderTest, AFileCountsWithItsWholeBlocks) {
  CacheFolder cache = opened();
  EXPECT_TRUE(save(cache, of_size(1, 0)));
  EXPECT_EQ(usage(), kBlock);
  EXPECT_TRUE(save(cache, of_size(kBlock + 1, 1)));
  EXPECT_EQ(usage(), 3 * kBlock);
  cache.remove(wire::sha256(of_size(kBlock + 1, 1)));
  EXPECT_EQ(usage(), kBlock);
  EXPECT_TRUE(save(cache, of_size(1, 2)));
  EXPECT_TRUE(save(cache, of_size(1, 3)));
  EXPECT_FALSE(save(cache, of_size(1, 4)));  // this session has added half of the limit
  for (const int i : {5, 6, 7, 8, 9, 10, 11, 12}) {
    CacheFolder other = opened();
    EXPECT_TRUE(save(other, of_size(1, i)));
    EXPECT_LE(usage(), kLimit);
  }
  EXPECT_EQ(usage(), 9 * kBlock);  // two were removed
  EXPECT_EQ(bytes_on_disk(), 9);
}

// Processes of two containers can have the same id, and so can two objects here.
TEST_F(CacheFolderTest, TwoSavesAtOnceHaveFilesOfTheirOwn) {
  CacheFolder first = opened();
  CacheFolder second = opened();
  auto one = first.begin(100);
  auto two = second.begin(100);
  ASSERT_TRUE(one && two);
  EXPECT_NE(one->name, two->name);
  EXPECT_TRUE(CacheFolder::add(*one, of_size(100, 1)));
  EXPECT_TRUE(CacheFolder::add(*two, of_size(100, 2)));
  first.finish(std::move(*one));
  second.finish(std::move(*two));
  EXPECT_EQ(first.list().size(), 2);
}

TEST_F(CacheFolderTest, SessionsAtOnceStayBelowTheLimit) {
  constexpr int kSessions = 6;
  std::vector<std::thread> sessions;
  for (int i = 0; i < kSessions; ++i)
    sessions.emplace_back([this, i] {
      CacheFolder cache = opened(10 * kLimit, i % 2 == 0 ? kOwner : kOther);
      for (int j = 0; j < 20; ++j)
        save(cache, of_size(2 * kBlock, 100 * i + j));
    });
  for (std::thread& session : sessions)
    session.join();
  EXPECT_LE(bytes_on_disk(), 10 * kLimit);
  EXPECT_GE(bytes_on_disk(), 5 * kLimit);
}

TEST_F(CacheFolderTest, WhatACrashLeftIsCountedAndRemoved) {
  {
    CacheFolder crashed = opened();
    EXPECT_TRUE(crashed.begin(5 * kBlock));  // and neither finish() nor drop()
  }
  std::ofstream(folder_.path / "usage") << "?";
  CacheFolder cache = opened(6 * kBlock);
  EXPECT_TRUE(cache.list().empty());
  EXPECT_TRUE(save(cache, of_size(2 * kBlock, 1)));
  EXPECT_EQ(bytes_on_disk(), 2 * kBlock);
}

TEST_F(CacheFolderTest, ADroppedSaveLeavesNothing) {
  CacheFolder cache = opened();
  auto saving = cache.begin(100);
  ASSERT_TRUE(saving);
  EXPECT_FALSE(CacheFolder::add(*saving, of_size(101, 1)));
  cache.drop(*saving);
  EXPECT_EQ(bytes_on_disk(), 0);
  EXPECT_EQ(usage(), 0);
}

TEST_F(CacheFolderTest, ACutEntryIsReplacedWhenItIsSavedAgain) {
  const auto bytes = of_size(100, 1);
  CacheFolder cache = opened();
  EXPECT_TRUE(save(cache, bytes));
  fs::resize_file(folder_.path / to_hex(kOwner) / to_hex(wire::sha256(bytes)), 10);
  EXPECT_TRUE(save(cache, bytes));
  EXPECT_THAT(cache.list(), ElementsAre(wire::CachedEntry{wire::sha256(bytes), 100}));
}

TEST_F(CacheFolderTest, AFullDiskOrARemovedFolderIsNoEntry) {
  CacheFolder cache = opened();
  auto saving = cache.begin(100);
  ASSERT_TRUE(saving);
  saving->file = Fd(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  EXPECT_FALSE(CacheFolder::add(*saving, of_size(100, 1)));
  cache.drop(*saving);
  folder_.remove();
  EXPECT_FALSE(cache.begin(100));
  EXPECT_TRUE(cache.list().empty());
  EXPECT_FALSE(cache.find(kOwner));
}

// Promise 7d.
TEST_F(CacheFolderTest, WhatIsNoFileIsNoEntry) {
  CacheFolder cache = opened();
  EXPECT_TRUE(save(cache, of_size(100, 1)));
  const fs::path own = folder_.path / to_hex(kOwner);
  ::mkfifo((own / to_hex(wire::Digest{std::byte{7}})).c_str(), 0600);
  fs::create_symlink("/etc/passwd", own / to_hex(wire::Digest{std::byte{8}}));
  EXPECT_FALSE(cache.find(wire::Digest{std::byte{7}}));
  EXPECT_FALSE(cache.find(wire::Digest{std::byte{8}}));
}

// Promise 7d.
TEST_F(CacheFolderTest, AFolderThatIsNotPrivateIsRefused) {
  EXPECT_EQ(refusal(), "");
  fs::permissions(folder_.path, fs::perms::group_read, fs::perm_options::add);
  EXPECT_THAT(refusal(), HasSubstr("chmod 700"));
  folder_.remove();
  std::ofstream(folder_.path) << "a file";
  EXPECT_THAT(refusal(), HasSubstr("cannot be opened"));
  fs::remove(folder_.path);
  EXPECT_EQ(refusal(), "");  // it is made
  EXPECT_EQ(fs::status(folder_.path).permissions(), fs::perms::owner_all);
}

// Promise 7d.
TEST_F(CacheFolderTest, AFolderOfAnotherUserIsRefused) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a folder away";
  EXPECT_EQ(refusal(), "");
  ASSERT_EQ(::chown(folder_.path.c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal(), HasSubstr("belongs to another user"));
}

TEST_F(CacheFolderTest, AFolderThatCannotBeMadeIsRefused) {
  EXPECT_THROW(CacheFolder::open((folder_.path / "a" / "b").string()), std::invalid_argument);
  EXPECT_THROW(CacheFolder::open("/proc/torch-remote"), std::invalid_argument);
}

}  // namespace
}  // namespace torch_remote::server
