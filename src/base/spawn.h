#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <spawn.h>
#include <sys/types.h>

#include "base/platform.h"

// What spawn_posix.cpp shares with spawn_linux.cpp and spawn_macos.cpp. Others use platform.h.
namespace torch_remote {

// posix_spawn's functions return the error and do not set errno.
void check_spawn(int error, std::string_view what);

// What a child does with its descriptors before it is the program.
class SpawnActions {
 public:
  SpawnActions();
  ~SpawnActions();
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;

  void put(const Fd& descriptor, int target);
  // The child has no others: also closes what libraries have opened without close-on-exec.
  void close_from(int first);

  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// posix_spawn, not fork: it copies no page tables and does not run the atfork handlers of libtorch,
// OpenMP and CUDA. `environment` is an array for exec. The program is found in PATH.
Child spawn(const std::string& program, std::vector<std::string> arguments, char** environment,
            SpawnActions& actions, bool is_new_session = true);

// The null-terminated array for exec, which points into `strings`.
std::vector<char*> pointers_to(std::vector<std::string>& strings);

// One for each operating system.

extern const short kSpawnFlags;  // besides those that spawn() sets
// Readable once the process has ended; empty where the kernel has none, or it has ended already.
Fd watch_child(pid_t pid);
char** own_environment();

}  // namespace torch_remote
