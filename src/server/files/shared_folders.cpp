#include "server/files/shared_folders.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// Folders in folders, in a list of all files.
constexpr int kMaxDepth = 16;

using Stat = struct stat;

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode))
    return "a folder";
  if (S_ISLNK(mode))
    return "a symbolic link, which is not followed";
  if (S_ISFIFO(mode))
    return "a FIFO";
  if (S_ISSOCK(mode))
    return "a socket";
  return S_ISREG(mode) ? "a file" : "a device";
}

[[noreturn]] void refuse(std::string_view path, const std::string& what) {
  throw FileError(escaped(path) + " " + what);
}

// The parts between the '/', none of which is empty or leads up.
std::vector<std::string> parts_of(std::string_view name) {
  if (name.empty())
    throw FileError("the name of a file is empty");
  if (name.find('\0') != std::string_view::npos || needs_escapes(name))
    refuse(name, "is no name of a file: it has a control character");
  if (name.starts_with('/'))
    refuse(name, "begins with '/': files are named by their path below a folder of serve --files");
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..")
      refuse(name,
             "has an empty part, '.' or '..': files are named by their path below a folder "
             "of serve --files");
    parts.emplace_back(part);
    begin = end + 1;
  }
  return parts;
}

// False: there is nothing of this name.
bool look_at(const Fd& folder, const std::string& part, std::string_view path, Stat& facts) {
  if (::fstatat(folder.get(), part.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0)
    return true;
  if (errno == ENOENT)
    return false;
  refuse(path, describe_errno("cannot be looked at", errno));
}

// O_NONBLOCK: should a FIFO take the file's place, nobody waits for its writer.
Fd open_below(const Fd& folder, const std::string& part, bool is_folder) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  return Fd(::openat(folder.get(), part.c_str(), kFlags | (is_folder ? O_DIRECTORY : 0)));
}

[[noreturn]] void refuse_missing(const std::string& name) {
  throw FileError("no folder of serve --files has the file " + escaped(name));
}

// Opens the last part. Empty: the folder does not have the file.
Fd open_path(const Fd& root, const std::vector<std::string>& parts) {
  Fd opened;
  std::string path;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Fd& folder = i == 0 ? root : opened;
    const bool is_last = i + 1 == parts.size();
    path += (i == 0 ? "" : "/") + parts[i];
    Stat facts{};
    if (!look_at(folder, parts[i], path, facts))
      return {};
    if (is_last ? !S_ISREG(facts.st_mode) : !S_ISDIR(facts.st_mode))
      refuse(path, std::string("is ") + kind_of(facts.st_mode));
    Fd next = open_below(folder, parts[i], !is_last);
    if (!next)
      refuse(path, describe_errno("cannot be opened", errno));
    opened = std::move(next);
  }
  return opened;
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// Null where it cannot be read.
std::unique_ptr<DIR, CloseFolder> read_folder(const Fd& folder) {
  Fd own = open_below(folder, ".", true);
  std::unique_ptr<DIR, CloseFolder> reader(::fdopendir(own.get()));
  if (reader != nullptr)
    static_cast<void>(own.release());  // the reader closes it
  return reader;
}

}  // namespace

// --- a file

SharedFile::SharedFile(Fd file, std::string name)
    : file_(std::move(file)), name_(std::move(name)), facts_(look()) {}

SharedFile::Facts SharedFile::look() const {
  Stat facts{};
  if (::fstat(file_.get(), &facts) != 0)
    refuse(name_, describe_errno("cannot be looked at", errno));
  if (!S_ISREG(facts.st_mode))
    refuse(name_, std::string("is ") + kind_of(facts.st_mode));
  return {static_cast<uint64_t>(facts.st_size), facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec};
}

void SharedFile::read(uint64_t begin, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      refuse(name_, describe_errno("cannot be read", errno));
    if (got == 0)
      refuse(name_, "became shorter while it was read");
    begin += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

void SharedFile::check_unchanged() const {
  if (look() != facts_)
    refuse(name_, "was changed while it was read");
}

// --- folders

SharedFolders::SharedFolders(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder)
      throw std::invalid_argument(describe_errno("--files " + path, errno));
    folders_.push_back(std::move(folder));
  }
}

SharedFile SharedFolders::open(const std::string& name) const {
  const std::vector<std::string> parts = parts_of(name);
  std::exception_ptr refusal;  // the first folder's that has something else of this name
  for (const Fd& folder : folders_) {
    try {
      if (Fd file = open_path(folder, parts))
        return {std::move(file), name};
    } catch (const FileError&) {
      if (refusal == nullptr)
        refusal = std::current_exception();
    }
  }
  if (refusal != nullptr)
    std::rethrow_exception(refusal);
  refuse_missing(name);
}

struct SharedFolders::Walk {
  std::map<std::string, uint64_t> files;  // by name, to their length
  size_t most = 0;                        // of files, folders and everything else
  size_t seen = 0;                        // of them
};

std::vector<wire::ListedFile> SharedFolders::list(size_t most) const {
  std::map<std::string, uint64_t> all;
  for (const Fd& folder : folders_) {
    Walk one{{}, most};
    walk(folder, "", 0, one);
    most -= one.seen;
    all.merge(one.files);  // a name that an earlier folder has stays that one's
  }
  std::vector<wire::ListedFile> listed;
  listed.reserve(all.size());
  for (const auto& [name, length] : all)
    listed.push_back({name, length});
  return listed;
}

void SharedFolders::walk(const Fd& folder, const std::string& path, int depth, Walk& walk) const {
  const auto reader = read_folder(folder);
  if (reader == nullptr)
    return;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe for a stream of one thread
  while (const dirent* const entry = ::readdir(reader.get())) {
    const std::string part = entry->d_name;
    if (part == "." || part == "..")
      continue;
    if (++walk.seen > walk.most)
      throw FileError("the folders of serve --files have more files than a list may have");
    const std::string name = path + part;
    Stat facts{};
    if (name.size() > wire::kMaxFileName || !is_utf8(std::as_bytes(std::span(name))) ||
        needs_escapes(name) ||
        ::fstatat(folder.get(), part.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (S_ISREG(facts.st_mode))
      walk.files.emplace(name, static_cast<uint64_t>(facts.st_size));
    if (!S_ISDIR(facts.st_mode) || depth == kMaxDepth)
      continue;
    if (const Fd below = open_below(folder, part, true))
      this->walk(below, name + "/", depth + 1, walk);
  }
}

std::string shared_folder(const std::string& path) {
  std::error_code error;
  const auto folder = std::filesystem::canonical(path, error);
  if (error)
    throw std::invalid_argument("--files " + path + ": " + error.message());
  if (!std::filesystem::is_directory(folder, error))
    throw std::invalid_argument("--files " + path + ": it is no folder");
  return folder.string();
}

}  // namespace torch_remote::server
