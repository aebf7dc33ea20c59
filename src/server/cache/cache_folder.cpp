#include "server/cache/cache_folder.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <tuple>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// The names in a folder, without those that begin with a dot.
std::vector<std::string> names_in(const Fd& folder) {
  const int again = ::openat(folder.get(), ".", kFolderFlags);  // with a position of its own
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(again < 0 ? nullptr : ::fdopendir(again),
                                                   [](DIR* open) { return ::closedir(open); });
  std::vector<std::string> names;
  if (opened == nullptr)
    return names;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe for a stream of one thread
  while (const dirent* const entry = ::readdir(opened.get()))
    if (entry->d_name[0] != '.')
      names.emplace_back(entry->d_name);
  return names;
}

// What a file of this length takes on the disk.
uint64_t whole_blocks(uint64_t length) {
  constexpr uint64_t kBlock = 4096;
  return (length + kBlock - 1) / kBlock * kBlock;
}

// The bytes of all files, locked while this lives.
class Usage {
 public:
  explicit Usage(const Fd& folder)
      : file_(::openat(folder.get(), "usage", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) {
    if (file_ && ::flock(file_.get(), LOCK_EX) != 0)
      file_.reset();
  }

  explicit operator bool() const { return static_cast<bool>(file_); }

  // Nothing: it was never written, or not by us.
  std::optional<uint64_t> read() const {
    uint64_t bytes = 0;
    if (::pread(file_.get(), &bytes, sizeof bytes, 0) != sizeof bytes)
      return std::nullopt;
    return bytes;
  }

  void write(uint64_t bytes) const {
    if (::pwrite(file_.get(), &bytes, sizeof bytes, 0) != sizeof bytes)
      static_cast<void>(::ftruncate(file_.get(), 0));  // the next one counts
  }

 private:
  Fd file_;
};

}  // namespace

struct CacheFolder::File {
  std::string owner;
  std::string name;
  timespec used;
  uint64_t length;

  uint64_t bytes() const { return whole_blocks(length); }

  bool operator<(const File& other) const {
    return std::tie(used.tv_sec, used.tv_nsec, name) <
           std::tie(other.used.tv_sec, other.used.tv_nsec, other.name);
  }
};

std::string to_hex(const wire::Digest& digest) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest) {
    text += kDigits[std::to_integer<unsigned>(byte >> 4)];
    text += kDigits[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

std::optional<wire::Digest> from_hex(const std::string& text) {
  wire::Digest digest{};
  if (text.size() != 2 * digest.size())
    return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = std::string_view("0123456789abcdef").find(text[i]);
    if (digit == std::string_view::npos)
      return std::nullopt;
    digest[i / 2] |= std::byte{static_cast<uint8_t>(i % 2 == 0 ? digit << 4 : digit)};
  }
  return digest;
}

Fd CacheFolder::open(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("--cache " + path + ": " + why);
  };
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    refuse(describe_errno("the folder cannot be made", errno));
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));

  struct stat facts {};

  if (!folder || ::fstat(folder.get(), &facts) != 0)
    refuse(describe_errno("the folder cannot be opened", errno));
  if (facts.st_uid != ::geteuid())
    refuse("the folder belongs to another user");
  if ((facts.st_mode & 077) != 0)
    refuse("other users can use the folder, which will have tensors of clients; run chmod 700");
  if (::faccessat(folder.get(), ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0)
    refuse(describe_errno("the folder cannot be written", errno));
  return folder;
}

CacheFolder::CacheFolder(Fd folder, const wire::Digest& owner, uint64_t limit, uint64_t least)
    : folder_(std::move(folder)),
      owner_(to_hex(owner)),
      limit_(limit),
      least_(least),
      own_(::openat(folder_.get(), owner_.c_str(), kFolderFlags)) {}

std::vector<CacheFolder::File> CacheFolder::files_of(const std::vector<std::string>& owners) const {
  std::vector<File> found;
  for (const std::string& owner : owners) {
    const Fd own(from_hex(owner) ? ::openat(folder_.get(), owner.c_str(), kFolderFlags) : -1);
    if (!own)
      continue;
    for (std::string& name : names_in(own)) {
      struct stat facts {};

      if (::fstatat(own.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0)
        found.push_back(
            {owner, std::move(name), facts.st_mtim, static_cast<uint64_t>(facts.st_size)});
    }
  }
  return found;
}

std::vector<wire::CachedEntry> CacheFolder::list() const {
  std::vector<File> found = files_of({owner_});
  std::sort(found.rbegin(), found.rend());
  std::vector<wire::CachedEntry> entries;
  for (const File& file : found)
    if (const auto digest = from_hex(file.name); digest && entries.size() < wire::kMaxCachedUploads)
      entries.push_back({*digest, file.length});
  return entries;
}

Fd CacheFolder::find(const wire::Digest& digest) const {
  // Without O_NONBLOCK a pipe of this name would stop us.
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Fd file(own_ ? ::openat(own_.get(), to_hex(digest).c_str(), kFlags) : -1);

  struct stat facts {};

  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode))
    return {};
  ::futimens(file.get(), nullptr);
  return file;
}

void CacheFolder::remove(const wire::Digest& digest) {
  remove_file(to_hex(digest));
}

void CacheFolder::remove_file(const std::string& name) {
  if (!own_)
    return;
  const Usage usage(folder_);

  struct stat facts {};

  if (!usage || ::fstatat(own_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::unlinkat(own_.get(), name.c_str(), 0) != 0)
    return;
  const uint64_t bytes = usage.read().value_or(0);
  usage.write(bytes - std::min(bytes, whole_blocks(static_cast<uint64_t>(facts.st_size))));
}

uint64_t CacheFolder::evict(uint64_t room) {
  std::vector<File> found = files_of(names_in(folder_));
  std::sort(found.begin(), found.end());
  uint64_t bytes = 0;
  for (const File& file : found)
    bytes += file.bytes();
  const uint64_t wanted = bytes + room > limit_ ? std::max(limit_ / 10 * 9, room) - room : bytes;
  for (const File& file : found) {
    if (bytes <= wanted)
      break;
    const std::string path = file.owner + "/" + file.name;
    if (::unlinkat(folder_.get(), path.c_str(), 0) == 0)
      bytes -= file.bytes();
  }
  return bytes;
}

std::optional<CacheFolder::Saving> CacheFolder::begin(uint64_t length) {
  if (length == 0 || length < least_ || length > limit_ / 2)
    return std::nullopt;
  const uint64_t taken = whole_blocks(length);
  if (taken > limit_ / 2 - added_)
    return std::nullopt;
  if (!own_) {
    ::mkdirat(folder_.get(), owner_.c_str(), 0700);
    own_ = Fd(::openat(folder_.get(), owner_.c_str(), kFolderFlags));
  }
  const Usage usage(folder_);
  if (!own_ || !usage)
    return std::nullopt;
  std::optional<uint64_t> bytes = usage.read();
  if (!bytes || *bytes > limit_ - taken)
    bytes = evict(taken);
  if (*bytes > limit_ - taken)
    return std::nullopt;
  Saving saving;
  saving.length = length;
  wire::Digest unique{};  // processes of several machines can use one folder
  random_bytes(unique);
  saving.name = "saving-" + to_hex(unique);
  saving.file = Fd(::openat(own_.get(), saving.name.c_str(),
                            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!saving.file)
    return std::nullopt;
  if (::ftruncate(saving.file.get(), static_cast<off_t>(length)) != 0) {
    ::unlinkat(own_.get(), saving.name.c_str(), 0);
    return std::nullopt;
  }
  added_ += taken;
  usage.write(*bytes + taken);
  return saving;
}

bool CacheFolder::add(Saving& saving, std::span<const std::byte> part) {
  if (part.size() > saving.length - saving.written)
    return false;
  saving.sum.add(part);
  while (!part.empty()) {
    const ssize_t wrote = ::write(saving.file.get(), part.data(), part.size());
    if (wrote < 0 && errno == EINTR)
      continue;
    if (wrote <= 0)
      return false;  // the disk is full
    saving.written += static_cast<uint64_t>(wrote);
    part = part.subspan(static_cast<size_t>(wrote));
  }
  return true;
}

void CacheFolder::finish(Saving saving) {
  const std::string name = to_hex(saving.sum.finish());
  if (saving.written != saving.length)
    return drop(saving);
  remove_file(name);  // it may be damaged
  if (::renameat(own_.get(), saving.name.c_str(), own_.get(), name.c_str()) != 0)
    drop(saving);
}

void CacheFolder::drop(const Saving& saving) {
  remove_file(saving.name);
}

}  // namespace torch_remote::server
