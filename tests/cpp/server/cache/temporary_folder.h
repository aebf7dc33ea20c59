#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

namespace torch_remote::server::testing {

// The path of a folder that does not exist yet, and is removed at the end.
struct TemporaryFolder {
  explicit TemporaryFolder(const std::string& name)
      : path(std::filesystem::temp_directory_path() /
             ("torch-remote-" + name + "-" + std::to_string(::getpid()))) {
    remove();
  }

  ~TemporaryFolder() { remove(); }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  void remove() const { remove(path); }

  const std::filesystem::path path;

 private:
  // Not std::filesystem::remove_all(): torch's CUDA builds bring one, which crashes here.
  static void remove(const std::filesystem::path& which) {
    if (std::filesystem::is_directory(std::filesystem::symlink_status(which)))
      for (const auto& entry : std::filesystem::directory_iterator(which))
        remove(entry.path());
    std::filesystem::remove(which);
  }
};

// Bytes that differ for each `seed`.
inline std::vector<std::byte> of_size(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  auto state = static_cast<uint32_t>(seed) * 2654435761U + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

}  // namespace torch_remote::server::testing
