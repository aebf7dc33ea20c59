// Starts the processes of servers.
#include <cerrno>
#include <string_view>

#include <fcntl.h>
#include <features.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/spawn.h"

namespace torch_remote {
namespace {

std::vector<std::string> merged_environment(
    const std::vector<std::pair<std::string, std::string>>& additions) {
  std::vector<std::string> merged;
  for (const auto& [name, value] : additions)
    merged.push_back(name + "=" + value);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    bool replaced = false;
    for (const auto& [name, value] : additions)
      replaced = replaced || (text.starts_with(name) && text.substr(name.size()).starts_with('='));
    if (!replaced)
      merged.emplace_back(text);
  }
  return merged;
}

// Moves descriptors off the target numbers: dup2() would close another one there, or in older glibc
// leave close-on-exec set on itself.
std::vector<Fd> away_from_targets(std::vector<Fd> inherited) {
  const int end = kInheritedDescriptor + static_cast<int>(inherited.size());
  for (Fd& descriptor : inherited)
    if (descriptor.get() >= kInheritedDescriptor && descriptor.get() < end)
      descriptor = owned(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, end), "fcntl");
  return inherited;
}

// Standard input is /dev/null; `sources` become descriptors kInheritedDescriptor and up.
void pass_on(const std::vector<Fd>& sources, SpawnActions& actions) {
  check_spawn(
      posix_spawn_file_actions_addopen(actions.get(), STDIN_FILENO, "/dev/null", O_RDONLY, 0),
      "posix_spawn_file_actions_addopen");
  int target = kInheritedDescriptor;
  for (const Fd& descriptor : sources)
    actions.put(descriptor, target++);
  actions.close_from(target);
}

}  // namespace

Child spawn_server(const std::string& path, const std::vector<std::string>& arguments,
                   const std::vector<std::pair<std::string, std::string>>& environment,
                   std::vector<Fd> inherited) {
  const std::vector<Fd> sources = away_from_targets(std::move(inherited));
  SpawnActions actions;
  pass_on(sources, actions);
  std::vector<std::string> merged = merged_environment(environment);
  return spawn(path, arguments, pointers_to(merged).data(), actions);
}

Child spawn_session(const std::string& path, const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment, std::vector<Fd> inherited,
                    const Fd& output) {
  const std::vector<Fd> sources = away_from_targets(std::move(inherited));
  const Fd away = owned(::fcntl(output.get(), F_DUPFD_CLOEXEC,
                                kInheritedDescriptor + static_cast<int>(sources.size())),
                        "fcntl");
  SpawnActions actions;
  actions.put(away, STDOUT_FILENO);
  actions.put(away, STDERR_FILENO);
  pass_on(sources, actions);
  std::vector<std::string> all = environment;
  return spawn(path, arguments, pointers_to(all).data(), actions, false);
}

void close_descriptors_in_programs() noexcept {
  constexpr long kCloseRange = 436;           // SYS_close_range, which older headers lack
  constexpr unsigned kCloseOnExec = 1U << 2;  // CLOSE_RANGE_CLOEXEC
  ::syscall(kCloseRange, 3U, ~0U, kCloseOnExec);
}

const short kSpawnFlags = 0;

void SpawnActions::close_from([[maybe_unused]] int first) {
#if __GLIBC_PREREQ(2, 34)
  check_spawn(posix_spawn_file_actions_addclosefrom_np(&actions_, first),
              "posix_spawn_file_actions_addclosefrom_np");
#endif
}

Fd watch_child(pid_t pid) {
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
}

char** own_environment() {
  return environ;
}

Fd watch_parent(pid_t pid) {
  return owned(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)), "pidfd_open");
}

}  // namespace torch_remote
