#pragma once

#include <string>
#include <vector>

// Limits which files this thread, and every thread that it starts from now on, can open: Linux's
// Landlock. It cannot be taken back. Descriptors that are open stay as they are.
namespace torch_remote {

struct FileRule {
  enum class Access {
    kRead,       // the file, or the folder with all below it
    kDevice,     // read, write and ioctl()
    kWriteOnly,  // folders are listed, what exists is written and cut, and no file is read
    kStore,      // files are made, read, written, cut and removed in the folder, and folders made
  };
  std::string path;  // a path that does not exist is skipped
  Access access = Access::kRead;
};

// The version of the kernel's Landlock; 0: it has none, and errno says why.
int landlock_abi() noexcept;

// The first version that keeps signals inside.
inline constexpr int kLandlockWithSignals = 6;

// Allows what `rules` allow and nothing else: no other file is opened, none is executed, made,
// removed or renamed. Where the kernel's version has it, abstract sockets, signals to processes
// outside and, unless `may_connect`, TCP connections are refused too. Keeps a descriptor open for
// each path below /proc, because the kernel may forget a rule for a file there that nobody holds.
// Throws std::system_error.
void restrict_files(const std::vector<FileRule>& rules, bool may_connect = false);

// "No new privileges": neither this process nor one that it starts gets rights that it does not
// have. The kernel asks for it before restrict_files() and install_call_filter().
void renounce_privileges() noexcept;

// The threads of this process; 0: unknown.
int count_threads() noexcept;

}  // namespace torch_remote
