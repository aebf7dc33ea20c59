#include "server/cache/upload_cache.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"
#include "server/cache/cache_folder.h"
#include "server/cache/temporary_folder.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::of_size;
using testing::TemporaryFolder;

constexpr wire::Digest kOwner{std::byte{1}};
constexpr std::chrono::seconds kPatience{60};
constexpr size_t kLeast = wire::kMinCachedUpload;

// A session's cache whose helper is a thread of this process.
class HelpedCache {
 public:
  explicit HelpedCache(const CacheOptions& options) : options_(options) {
    CacheSockets ours;
    std::tie(ours.requests, theirs_.requests) = message_pair();
    std::tie(ours.saves, theirs_.saves) = socket_pair();
    helper_ = std::thread([this] {
      help_with_cache(options_, theirs_);
      theirs_ = {};
    });
    cache.emplace(std::move(ours), kOwner, kPatience);
  }

  ~HelpedCache() {
    cache.reset();
    helper_.join();
  }

  std::optional<UploadCache> cache;

 private:
  const CacheOptions options_;
  CacheSockets theirs_;
  std::thread helper_;
};

class UploadCacheTest : public ::testing::Test {
 protected:
  void save(const std::vector<std::byte>& bytes) {
    HelpedCache session(options_);
    const std::span<const std::byte> all(bytes);
    const size_t half = bytes.size() / 2;
    session.cache->save(1, 0, bytes.size(), all.first(half));
    session.cache->save(1, half, bytes.size(), all.subspan(half));
  }  // the helper saves what was sent before the end

  fs::path own_folder() const { return folder_.path / to_hex(kOwner); }

  fs::path file_of(std::span<const std::byte> bytes) const {
    return own_folder() / to_hex(wire::sha256(bytes));
  }

  void wait_for_file(std::span<const std::byte> bytes) const {
    while (!fs::exists(file_of(bytes)))
      std::this_thread::yield();
  }

  size_t count_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(own_folder()), {}));
  }

  // What a session does with QUERY kCachedUpload; `meanwhile` runs when the file is open.
  template <typename Meanwhile>
  bool load(const std::vector<std::byte>& bytes, Meanwhile&& meanwhile) {
    HelpedCache session(options_);
    const wire::Digest digest = wire::sha256(bytes);
    const Fd file = session.cache->find(digest, bytes.size());
    if (!file)
      return false;
    meanwhile();
    std::vector<std::byte> read(bytes.size());
    return session.cache->read(file, digest, read) && read == bytes;
  }

  bool load(const std::vector<std::byte>& bytes) {
    return load(bytes, [] {});
  }

  const TemporaryFolder folder_{"upload-cache"};
  const CacheOptions options_{folder_.path, 10 << 20, false};
  const std::vector<std::byte> bytes_ = of_size(3 << 20, 1);
};

// Promise 7.
TEST_F(UploadCacheTest, TheHelpersAnswerIsNoMemoryThatASessionCanFill) {
  CacheSockets theirs;
  Fd requests;
  std::tie(requests, theirs.requests) = message_pair();
  std::tie(std::ignore, theirs.saves) = socket_pair();
  std::thread helper([&] { help_with_cache(options_, theirs); });
  for (const CacheAction action : {CacheAction::kOwner, CacheAction::kFind}) {
    const CacheRequest request{action, wire::Digest{std::byte{7}}};
    ::send(requests.get(), &request, sizeof request, 0);
  }
  pollfd polled{requests.get(), POLLIN, 0};
  ::poll(&polled, 1, std::chrono::milliseconds(kPatience).count());
  CacheAnswer answer;
  const auto files = take_descriptors(requests, std::as_writable_bytes(std::span(&answer, 1)));
  requests.reset();
  helper.join();
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(::write(files[0].get(), "x", 1), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST_F(UploadCacheTest, WhatOneSessionSavedTheNextLoads) {
  EXPECT_FALSE(load(bytes_));
  save(bytes_);
  EXPECT_TRUE(load(bytes_));
  HelpedCache session(options_);
  EXPECT_THAT(session.cache->list(),
              ElementsAre(wire::CachedEntry{wire::sha256(bytes_), bytes_.size()}));
}

// Promise 7d.
TEST_F(UploadCacheTest, ADamagedEntryIsRemoved) {
  save(bytes_);
  std::fstream file(file_of(bytes_), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(2 << 20);
  file.put(static_cast<char>(~std::to_integer<int>(bytes_[2 << 20])));
  file.close();
  EXPECT_FALSE(load(bytes_));
  EXPECT_FALSE(fs::exists(file_of(bytes_)));
  save(bytes_);
  EXPECT_TRUE(load(bytes_));
}

// Promise 7d.
TEST_F(UploadCacheTest, ACutEntryIsRemoved) {
  save(bytes_);
  fs::resize_file(file_of(bytes_), 1 << 20);
  EXPECT_FALSE(load(bytes_));
  EXPECT_FALSE(fs::exists(file_of(bytes_)));
}

// Promise 7d.
TEST_F(UploadCacheTest, AnEntryThatChangesWhileItIsOpenIsNotTaken) {
  save(bytes_);
  EXPECT_FALSE(load(bytes_, [&] { fs::resize_file(file_of(bytes_), 1 << 20); }));
  save(bytes_);
  EXPECT_FALSE(load(bytes_, [&] {
    const auto other = of_size(bytes_.size(), 2);
    std::ofstream(file_of(bytes_), std::ios::binary)
        .write(reinterpret_cast<const char*>(other.data()), static_cast<ssize_t>(other.size()));
  }));
  save(bytes_);
  EXPECT_TRUE(load(bytes_, [&] { fs::remove(file_of(bytes_)); }));  // it is open
}

TEST_F(UploadCacheTest, PartsOutOfOrderAreNotSaved) {
  HelpedCache session(options_);
  const std::span<const std::byte> all(bytes_);
  session.cache->save(1, 0, bytes_.size(), all.first(10));
  session.cache->save(1, 20, bytes_.size(), all.subspan(20, 10));
  session.cache->save(2, 10, bytes_.size(), all.subspan(10, 10));  // without a beginning
  session.cache->save(3, 0, kLeast, all.first(10));
  session.cache->save(3, 10, kLeast + 1, all.subspan(10, 10));  // of another length
  session.cache->save(4, 0, kLeast, all.first(kLeast));
  wait_for_file(all.first(kLeast));
  EXPECT_EQ(session.cache->list().size(), 1);
  EXPECT_EQ(count_files(), 1);
}

// Promise 7d.
TEST_F(UploadCacheTest, AnUploadThatIsTooShortIsNotSaved) {
  HelpedCache session(options_);
  const std::span<const std::byte> all(bytes_);
  session.cache->save(1, 0, kLeast - 1, all.first(kLeast - 1));
  session.cache->save(2, 0, kLeast, all.first(kLeast));
  wait_for_file(all.first(kLeast));
  EXPECT_EQ(count_files(), 1);
}

// Promise 7d.
TEST_F(UploadCacheTest, APartThatIsTooLongEndsTheSaving) {
  auto [ours, theirs] = message_pair();
  auto [saves, taken] = socket_pair();
  const CacheRequest owner{CacheAction::kOwner, kOwner};
  const SavedPart part{1, 0, 8 << 20, SavedPart::kMaxPart + 1};
  ::send(ours.get(), &owner, sizeof owner, 0);
  const CacheSockets sockets{std::move(theirs), std::move(taken)};
  std::thread helper([&] { help_with_cache(options_, sockets); });
  ::send(saves.get(), &part, sizeof part, 0);
  char nothing = 0;
  EXPECT_EQ(::recv(saves.get(), &nothing, 1, 0), 0);  // the helper has closed it
  ours.reset();
  helper.join();
  EXPECT_FALSE(fs::exists(folder_.path / to_hex(kOwner)));
}

// A session that was taken over can write anything to its helper.
// Promise 7d.
TEST_F(UploadCacheTest, AHelperLeavesASessionThatDoesNotSpeakAsOursDoes) {
  const auto ends_after = [&](const CacheRequest& request) {
    auto [ours, theirs] = message_pair();
    auto [saves, taken] = socket_pair();
    const CacheRequest owner{CacheAction::kOwner, kOwner};
    ::send(ours.get(), &owner, sizeof owner, 0);
    ::send(ours.get(), &request, sizeof request, 0);
    const CacheSockets sockets{std::move(theirs), std::move(taken)};
    help_with_cache(options_, sockets);  // returns
  };
  ends_after({CacheAction::kOwner, wire::Digest{std::byte{9}}});
  ends_after({static_cast<CacheAction>(77), kOwner});
  EXPECT_FALSE(fs::exists(folder_.path / to_hex(wire::Digest{std::byte{9}})));
}

TEST_F(UploadCacheTest, WhatSuchASessionBeganToSaveIsDropped) {
  auto [ours, theirs] = message_pair();
  auto [saves, taken] = socket_pair();
  const CacheRequest owner{CacheAction::kOwner, kOwner};
  const SavedPart part{1, 0, kLeast, 1};
  ::send(ours.get(), &owner, sizeof owner, 0);
  const CacheSockets sockets{std::move(theirs), std::move(taken)};
  std::thread helper([&] { help_with_cache(options_, sockets); });
  ::send(saves.get(), &part, sizeof part, 0);
  ::send(saves.get(), "x", 1, 0);
  while (!fs::exists(own_folder()) || count_files() == 0)
    std::this_thread::yield();
  ::send(ours.get(), "rubbish", 7, 0);
  helper.join();
  EXPECT_EQ(count_files(), 0);
}

// A part that the helper takes bit by bit does not hold the reader thread any longer.
TEST_F(UploadCacheTest, ASaveWaitsNoLongerThanItsPatience) {
  auto [requests, theirs] = message_pair();
  auto [saves, taken] = socket_pair();
  std::optional<UploadCache> cache;
  cache.emplace(CacheSockets{std::move(requests), std::move(saves)}, kOwner,
                std::chrono::milliseconds(20));
  size_t got = 0;
  std::thread helper([&, &taken = taken] {  // takes at least 480 ms for all
    std::vector<std::byte> some(32 << 10);
    for (ssize_t more = 1; more > 0; got += static_cast<size_t>(more)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      more = ::recv(taken.get(), some.data(), some.size(), 0);
    }
  });
  cache->save(1, 0, bytes_.size(), bytes_);
  cache->save(1, 0, bytes_.size(), bytes_);  // nothing is saved any more
  cache.reset();
  helper.join();
  EXPECT_LT(got, bytes_.size());
}

// The kernel then gives the answer without its descriptor.
TEST_F(UploadCacheTest, WithoutAFreeDescriptorTheCacheIsNotUsed) {
  auto [requests, theirs] = message_pair();
  auto [saves, taken] = socket_pair();
  UploadCache cache({std::move(requests), std::move(saves)}, kOwner);
  const CacheAnswer answer{sizeof(wire::CachedEntry)};
  const auto bytes = std::as_bytes(std::span(&answer, 1));
  ASSERT_EQ(pass_descriptors(theirs, bytes, std::array{STDERR_FILENO}), Passed::kSent);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto entries = cache.list();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(entries.empty());
  char byte = 0;
  while (::recv(theirs.get(), &byte, 1, 0) > 0) {  // the owner and the question
  }
  EXPECT_EQ(pass_descriptors(theirs, bytes, std::array{STDERR_FILENO}), Passed::kGone);  // closed
}

TEST_F(UploadCacheTest, WithoutAHelperNothingIsFoundOrSaved) {
  auto [requests, closed] = message_pair();
  auto [saves, closed_too] = socket_pair();
  closed.reset();
  closed_too.reset();
  UploadCache cache({std::move(requests), std::move(saves)}, kOwner);
  cache.save(1, 0, bytes_.size(), bytes_);
  EXPECT_TRUE(cache.list().empty());
  EXPECT_FALSE(cache.find(kOwner, 1));
}

TEST_F(UploadCacheTest, AnUnusableFolderIsNoError) {
  std::ofstream(folder_.path) << "a file";
  HelpedCache session(options_);
  EXPECT_TRUE(session.cache->list().empty());
  session.cache->save(1, 0, bytes_.size(), bytes_);
}

// The process, as a session starts it.
// Promise 7d.
TEST_F(UploadCacheTest, TheHelperIsAConfinedProcess) {
  CacheOptions options = options_;
  options.is_confined = true;
  CacheFolder::open(options.folder);  // as the listener does
  UploadCache cache(start_cache_helper(options), kOwner, kPatience);
  cache.save(1, 0, bytes_.size(), bytes_);
  wait_for_file(bytes_);
  EXPECT_THAT(cache.list(), ElementsAre(wire::CachedEntry{wire::sha256(bytes_), bytes_.size()}));
}

// The process that this thread forked last; it has the layout of this one.
pid_t last_child() {
  pid_t child = 0;
  std::ifstream children("/proc/thread-self/children");
  for (pid_t next = 0; children >> next;)
    child = next;
  return child;
}

// Promise 7d.
TEST_F(UploadCacheTest, TheHelperEndsWithItsSessionThatHasGivenItsSocketsAway) {
  auto [ours, theirs] = message_pair();
  std::byte letter{};
  const pid_t session = ::fork();
  if (session == 0) {
    const CacheSockets own = start_cache_helper(options_);
    const std::array given{own.requests.get(), own.saves.get()};
    ::_exit(pass_descriptors(theirs, std::span(&letter, 1), given) == Passed::kSent ? 0 : 1);
  }
  theirs.reset();
  const std::vector<Fd> given = receive_descriptors(ours, std::span(&letter, 1));
  ASSERT_EQ(given.size(), 2U);
  ::waitpid(session, nullptr, 0);
  pollfd polled{given[0].get(), POLLIN, 0};
  const auto patience = std::chrono::milliseconds(3 * kTimeToSave);
  EXPECT_EQ(::poll(&polled, 1, static_cast<int>(patience.count())), 1);
  EXPECT_NE(polled.revents & POLLHUP, 0);
}

// Promise 7d.
TEST_F(UploadCacheTest, TheHelperDoesNotHaveTheToken) {
  std::string token(64, 't');
  CacheFolder::open(options_.folder);
  UploadCache cache(start_cache_helper(options_, token), kOwner);
  EXPECT_TRUE(cache.list().empty());  // the helper has begun
  EXPECT_EQ(token, std::string(64, 't'));
  const std::string path = "/proc/" + std::to_string(last_child()) + "/mem";
  const Fd memory(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string seen(token.size(), 'x');
  const auto at = static_cast<off_t>(reinterpret_cast<uintptr_t>(token.data()));
  if (::pread(memory.get(), seen.data(), seen.size(), at) < 0)
    GTEST_SKIP() << "this process cannot read the memory of one that it has forked";
  EXPECT_EQ(seen, std::string(64, '\0'));
}

}  // namespace
}  // namespace torch_remote::server
