#pragma once

#include <array>
#include <memory>

#include "server/files/shared_folders.h"

namespace torch_remote::fuzz {

// What is in the folder that a fuzzed session may read; the first is nowhere.
inline constexpr std::array<const char*, 5> kFiles{"none", "bytes", "good", "bad", "index"};

// The folder, which is removed when the process exits.
std::shared_ptr<const server::SharedFolders> shared_files();

}  // namespace torch_remote::fuzz
