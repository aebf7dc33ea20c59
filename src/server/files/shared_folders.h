#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fd.h"
#include "wire/files.h"

namespace torch_remote::server {

// A file cannot be read. A sentence for the client.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A regular file that is open for reading. Thread-safe.
class SharedFile {
 public:
  // Throws FileError for what is no regular file.
  SharedFile(Fd file, std::string name);

  uint64_t length() const { return facts_.length; }

  // Throws FileError where the file has become shorter.
  void read(uint64_t begin, std::span<std::byte> bytes) const;
  // Throws FileError if the file was written to since it was opened. Call after reading.
  void check_unchanged() const;

  const std::string& name() const { return name_; }

 private:
  struct Facts {
    uint64_t length = 0;
    int64_t seconds = 0;  // when it was written last
    int64_t nanoseconds = 0;
    bool operator==(const Facts&) const = default;
  };

  Facts look() const;

  Fd file_;
  std::string name_;
  Facts facts_;
};

// Note [Shared folders]
//
// The folders of `serve --files`. A client names a file by its path below one of them: "a.bin" or
// "run3/step100.safetensors". Where several folders have it, the first one's is meant.
//
// No name leads out of its folder, whatever is in it and whoever changes it meanwhile: each part of
// a path is opened from the descriptor of the part before, no part may be "..", and none may be a
// symbolic link. (openat2() with RESOLVE_BENEATH would do the same in one call. The filter of a
// session's system calls cannot allow it, because its flags, by which files are made and written,
// are in memory.) What is no regular file is not opened. The session's Landlock has a rule for
// these folders and is a second barrier.
//
// Thread-safe: it has no state but the folders' descriptors.
class SharedFolders {
 public:
  // Absolute paths. Throws std::invalid_argument, which names --files.
  explicit SharedFolders(const std::vector<std::string>& paths);

  // Throws FileError.
  SharedFile open(const std::string& name) const;
  // The regular files in all folders and below, in the order of their names, without those whose
  // name no client could send. Throws FileError if there is more than `most` in the folders.
  std::vector<wire::ListedFile> list(size_t most = wire::kMaxListedFiles) const;

 private:
  struct Walk;

  void walk(const Fd& folder, const std::string& path, int depth, Walk& walk) const;

  std::vector<Fd> folders_;
};

// A folder as --files has it, as an absolute path without symbolic links. Throws
// std::invalid_argument.
std::string shared_folder(const std::string& path);

}  // namespace torch_remote::server
