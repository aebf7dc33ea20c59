#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/landlock.h"

namespace torch_remote {
namespace {

// From <linux/landlock.h>, which is older than some of this on many systems.
constexpr long kCreateRuleset = 444;
constexpr long kAddRule = 445;
constexpr long kRestrictSelf = 446;
constexpr uint32_t kAskVersion = 1U << 0;
constexpr int kPathBeneath = 1;

struct RulesetAttributes {
  uint64_t files = 0;
  uint64_t network = 0;  // since version 4
  uint64_t scope = 0;    // since version 6
};

struct __attribute__((packed)) PathAttributes {
  uint64_t allowed = 0;
  int32_t folder = -1;
};

constexpr uint64_t kWriteFile = 1ULL << 1;
constexpr uint64_t kReadFile = 1ULL << 2;
constexpr uint64_t kReadFolder = 1ULL << 3;
constexpr uint64_t kRemoveFile = 1ULL << 5;
constexpr uint64_t kMakeFolder = 1ULL << 7;
constexpr uint64_t kMakeFile = 1ULL << 8;
constexpr uint64_t kTruncate = 1ULL << 14;
constexpr uint64_t kIoctl = 1ULL << 15;
// The rights that a rule for a file may have: execute, write, read, truncate, ioctl.
constexpr uint64_t kOfFiles = 1ULL << 0 | kWriteFile | kReadFile | kTruncate | kIoctl;
constexpr uint64_t kAllNetwork = 3;  // bind and connect TCP sockets
constexpr uint64_t kAllScopes = 3;   // abstract sockets and signals

// All rights that the version knows, so that each is refused unless a rule allows it.
uint64_t rights_of(int abi) {
  if (abi >= 5)
    return (1ULL << 16) - 1;
  return (1ULL << (abi >= 3 ? 15 : abi == 2 ? 14 : 13)) - 1;
}

uint64_t rights_for(FileRule::Access access) {
  switch (access) {
    case FileRule::Access::kRead:
      return kReadFile | kReadFolder;
    case FileRule::Access::kDevice:
      return kReadFile | kReadFolder | kWriteFile | kIoctl;
    case FileRule::Access::kWriteOnly:
      return kReadFolder | kWriteFile | kTruncate;
    case FileRule::Access::kStore:
      return kReadFile | kReadFolder | kWriteFile | kMakeFile | kMakeFolder | kRemoveFile |
             kTruncate;
  }
  return 0;
}

Fd make_ruleset(int abi, bool may_connect) {
  RulesetAttributes attributes;
  attributes.files = rights_of(abi);
  attributes.network = abi >= 4 && !may_connect ? kAllNetwork : 0;
  attributes.scope = abi >= kLandlockWithSignals ? kAllScopes : 0;
  const size_t size = abi >= kLandlockWithSignals ? sizeof attributes
                      : abi >= 4                  ? offsetof(RulesetAttributes, scope)
                                                  : offsetof(RulesetAttributes, network);
  Fd ruleset(static_cast<int>(::syscall(kCreateRuleset, &attributes, size, 0U)));
  if (!ruleset)
    throw_system_errno("landlock_create_ruleset", errno);
  return ruleset;
}

// Returns the descriptor of the path; empty where it does not exist.
Fd add_rule(const Fd& ruleset, const FileRule& rule, uint64_t known) {
  Fd place(::open(rule.path.c_str(), O_PATH | O_CLOEXEC));

  struct stat facts {};

  if (!place || ::fstat(place.get(), &facts) != 0)
    return {};
  PathAttributes attributes{rights_for(rule.access) & known, place.get()};
  if (!S_ISDIR(facts.st_mode))
    attributes.allowed &= kOfFiles;
  if (::syscall(kAddRule, ruleset.get(), kPathBeneath, &attributes, 0U) != 0)
    throw_system_errno("landlock_add_rule for " + rule.path, errno);
  return place;
}

}  // namespace

int landlock_abi() noexcept {
  const long version = ::syscall(kCreateRuleset, nullptr, size_t{0}, kAskVersion);
  return version > 0 ? static_cast<int>(version) : 0;
}

void restrict_files(const std::vector<FileRule>& rules, bool may_connect) {
  static auto& kept = *new std::vector<Fd>;  // until the process ends
  const int abi = landlock_abi();
  if (abi == 0)
    throw_system_errno("Landlock", errno);
  const Fd ruleset = make_ruleset(abi, may_connect);
  for (const FileRule& rule : rules)
    if (Fd place = add_rule(ruleset, rule, rights_of(abi));
        place && rule.path.starts_with("/proc/"))
      kept.push_back(std::move(place));
  if (::syscall(kRestrictSelf, ruleset.get(), 0U) != 0)
    throw_system_errno("landlock_restrict_self", errno);
}

void renounce_privileges() noexcept {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int count_threads() noexcept {
  DIR* const folder = ::opendir("/proc/self/task");
  if (folder == nullptr)
    return 0;
  int count = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe for a stream of one thread
  while (const dirent* const entry = ::readdir(folder))
    count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(folder);
  return count;
}

}  // namespace torch_remote
