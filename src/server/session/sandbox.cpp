#include "server/session/sandbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/call_filter.h"
#include "base/landlock.h"
#include "base/platform.h"

namespace torch_remote::server {
namespace {

namespace fs = std::filesystem;
using Access = FileRule::Access;

// What everybody may read and libraries do read late. Not /etc, /home, /root, /run, /tmp or /var.
// Of /proc/self single files: below it are also the connections of the machine (net).
constexpr auto kRead = std::to_array<const char*>({
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm",
    "/proc/self/auxv",
    "/proc/self/cgroup",
    "/proc/self/cmdline",
    "/proc/self/comm",
    "/proc/self/maps",
    "/proc/self/mountinfo",
    "/proc/self/numa_maps",
    "/proc/self/smaps_rollup",
    "/proc/self/stat",
    "/proc/self/statm",
    "/proc/self/status",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/driver",  // of NVIDIA
    "/proc/meminfo",
    "/proc/modules",
    "/proc/stat",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random/boot_id",  // machine_identity()
    "/proc/sys/vm",
    "/proc/version",
    "/dev/random",
    "/dev/urandom",
});

// CUDA and NVML look for the GPU, its place and its driver there; Gloo and NCCL for the network's.
constexpr std::array kReadForDevices{"/sys/bus", "/sys/class", "/sys/devices", "/sys/module"};

constexpr std::array<std::string_view, 4> kGpus{"nvidia", "nvhost", "nvmap", "dxg"};
// Beside these there are libraries that are loaded when they are first needed. Whole names: the
// administrator's libcustom.so may lie in a folder that has secrets too.
constexpr std::array<std::string_view, 17> kLoadOthers{
    "libtorch",    "libtorch_cpu", "libtorch_cuda", "libc10",       "libc10_cuda", "libcuda",
    "libcudart",   "libcublas",    "libcublasLt",   "libcudnn",     "libcufft",    "libcurand",
    "libcusolver", "libcusparse",  "libnvrtc",      "libnvJitLink", "libnccl"};

template <typename Prefixes>
bool begins_with_one_of(const std::string& name, const Prefixes& prefixes) {
  for (const std::string_view prefix : prefixes)
    if (name.starts_with(prefix))
      return true;
  return false;
}

// Whether a file is one of kLoadOthers: "libcudnn.so.9", "libcudart-1b2c3d.so.12".
bool loads_others(const std::string& name) {
  const std::string_view whole = std::string_view(name).substr(0, name.find_first_of(".-"));
  return std::ranges::find(kLoadOthers, whole) != kLoadOthers.end();
}

// The files that are mapped: the libraries that are loaded.
std::set<fs::path> mapped_files() {
  std::set<fs::path> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && !line.ends_with("(deleted)"))
      files.insert(line.substr(path));
  }
  return files;
}

// A library that is loaded is opened again when something loads it by another name. The wheels of
// torch have their CUDA libraries in a folder `nvidia` beside torch's.
void add_libraries(std::vector<FileRule>& rules) {
  std::set<fs::path> folders;
  for (const fs::path& file : mapped_files()) {
    rules.push_back({file, Access::kRead});
    const std::string name = file.filename();
    if (!loads_others(name))
      continue;
    folders.insert(file.parent_path());
    if (name.starts_with("libtorch"))
      folders.insert(file.parent_path().parent_path().parent_path() / "nvidia");
  }
  for (const fs::path& folder : folders)
    rules.push_back({folder, Access::kRead});
}

// The administrator named these folders of libraries.
void add_search_path(std::vector<FileRule>& rules) {
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    const std::string folder(rest.substr(0, end));
    if (folder.size() > 1 && folder.starts_with('/'))
      rules.push_back({folder, Access::kRead});
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
}

void add_devices(std::vector<FileRule>& rules) {
  for (const char* const device : {"/dev/null", "/dev/zero"})
    rules.push_back({device, Access::kDevice});
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev", ignored))
    if (begins_with_one_of(entry.path().filename(), kGpus))
      rules.push_back({entry.path(), Access::kDevice});
  // The driver gives its threads names, and does not start without: /proc/self/task/*/comm. Nothing
  // below can be read, because the connections of the machine (net) are there too.
  if (has_gpu())
    rules.push_back({"/proc/self/task", Access::kWriteOnly});
}

bool has_gpu_device() {
  std::error_code ignored;
  return std::ranges::any_of(fs::directory_iterator("/dev", ignored), [](const auto& entry) {
    return begins_with_one_of(entry.path().filename().string(), kGpus);
  });
}

// What the administrator lets this session's group of processes use, and nothing of other groups.
void add_own_cgroup(std::vector<FileRule>& rules) {
  constexpr std::array<std::string_view, 4> kLimits{"cpu.", "cpuset.", "memory.", "pids."};
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/a", of version 2 "0::/a"
    const size_t kinds = line.find(':') + 1;
    const size_t path = line.find(':', kinds) + 1;
    if (kinds == 0 || path == 0)
      continue;
    const fs::path folder = fs::path("/sys/fs/cgroup") / line.substr(kinds, path - 1 - kinds) /
                            fs::path(line.substr(path)).relative_path();
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (begins_with_one_of(entry.path().filename().string(), kLimits) &&
          entry.is_regular_file(ignored))
        rules.push_back({entry.path(), Access::kRead});
  }
}

// Code that an unconfined process compiled for a GPU may be read, and is not added to: a session
// could leave code there for another. `variable` names the folder, else it is below `home`.
void add_cache(std::vector<FileRule>& rules, const char* variable, const char* home,
               const char* below) {
  if (const char* const set = std::getenv(variable); set != nullptr && set[0] == '/')
    rules.push_back({set, Access::kRead});
  else if (const char* const folder = std::getenv(home); folder != nullptr && folder[0] == '/')
    rules.push_back({fs::path(folder) / below, Access::kRead});
}

std::vector<FileRule> file_rules(const SandboxNeeds& needs) {
  std::vector<FileRule> rules;
  for (const char* const path : kRead)
    rules.push_back({path, Access::kRead});
  if ((needs.may_use_gpu && has_gpu_device()) || needs.opens_connections)
    for (const char* const path : kReadForDevices)
      rules.push_back({path, Access::kRead});
  for (const std::string& folder : needs.folders)
    rules.push_back({folder, Access::kRead});
  add_own_cgroup(rules);
  add_libraries(rules);
  add_search_path(rules);
  add_devices(rules);
  add_cache(rules, "CUDA_CACHE_PATH", "HOME", ".nv/ComputeCache");
  add_cache(rules, "PYTORCH_KERNEL_CACHE_PATH", "XDG_CACHE_HOME", "torch/kernels");
  add_cache(rules, "PYTORCH_KERNEL_CACHE_PATH", "HOME", ".cache/torch/kernels");
  return rules;
}

void add_lack(Sandbox& sandbox, const std::string& text) {
  sandbox.lacks += (sandbox.lacks.empty() ? "" : ", ") + text;
}

std::string in_words(int error) {
  return std::generic_category().message(error);
}

// Notes what a version of Landlock does not have; 0: there is none, because of `error`.
void note_landlock(Sandbox& sandbox, int abi, int error, bool may_use_gpu) {
  sandbox.landlock = abi;
  if (abi == 0)
    add_lack(sandbox, "no Landlock (" + in_words(error) + "): files can be read" +
                          (may_use_gpu ? ", with CUDA also written" : ""));
  else if (abi < kLandlockWithSignals)
    add_lack(sandbox, "no signal scope");
}

// The rights that `serve` was told to leave to sessions.
void note_kept(Sandbox& sandbox, const SandboxNeeds& needs) {
  if (needs.opens_connections)
    add_lack(sandbox, "--peers: TCP connections can be opened");
}

// The kernel writes a core file whatever Landlock says. Where Landlock does not keep other sessions
// of this user out of this process's memory, this does.
void hide_memory(bool is_confined) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (!is_confined)
    ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

}  // namespace

bool has_gpu() noexcept {
  return ::access("/dev/nvidiactl", F_OK) == 0;
}

// CUDA reads the list up to the first number that is no GPU's.
bool hides_every_gpu(const char* visible_devices) noexcept {
  return visible_devices != nullptr && (*visible_devices == '\0' || *visible_devices == '-');
}

SandboxMode parse_sandbox(const std::string& text) {
  for (const SandboxMode mode : {SandboxMode::kAuto, SandboxMode::kOff, SandboxMode::kTrace})
    if (text == to_text(mode))
      return mode;
  throw std::invalid_argument("--sandbox (or TORCH_REMOTE_SANDBOX) " + text +
                              ": use auto, off or trace");
}

std::string to_text(SandboxMode mode) {
  switch (mode) {
    case SandboxMode::kAuto:
      return "auto";
    case SandboxMode::kOff:
      return "off";
    case SandboxMode::kTrace:
      return "trace";
  }
  return "auto";
}

std::string Sandbox::describe() const {
  if (mode == SandboxMode::kOff)
    return "off";
  std::string text = filters_calls ? "seccomp" : "";
  if (landlock > 0)
    text += (text.empty() ? "" : ", ") + ("Landlock ABI " + std::to_string(landlock));
  if (text.empty())
    text = "none";
  return lacks.empty() ? text : text + "; " + lacks;
}

Sandbox expected_sandbox(SandboxMode mode, const SandboxNeeds& needs) {
  Sandbox sandbox;
  sandbox.mode = mode;
  if (sandbox.mode == SandboxMode::kOff)
    return sandbox;
  const int abi = landlock_abi();
  note_landlock(sandbox, abi, errno, has_gpu());
  sandbox.filters_calls = can_filter_calls();
  if (!sandbox.filters_calls)
    add_lack(sandbox, "no seccomp");
  note_kept(sandbox, needs);
  return sandbox;
}

Sandbox confine_files(SandboxMode mode, const SandboxNeeds& needs) {
  Sandbox sandbox;
  sandbox.mode = mode;
  if (sandbox.mode == SandboxMode::kOff)
    return sandbox;
  renounce_privileges();
  give_up_capabilities();
  int error = ENOSYS;
  int abi = landlock_abi();
  try {
    restrict_files(file_rules(needs), needs.opens_connections);
  } catch (const std::system_error& refused) {
    abi = 0;
    error = refused.code().value();
  }
  note_landlock(sandbox, abi, error, has_gpu());
  if (sandbox.mode == SandboxMode::kTrace && can_filter_calls())
    trace_opened_files();
  if (const int threads = count_threads(); abi > 0 && threads > 1)
    add_lack(sandbox, "threads of libraries without Landlock: " + std::to_string(threads - 1));
  return sandbox;
}

void confine_calls(Sandbox& sandbox, const SandboxNeeds& needs, bool uses_cuda) {
  if (sandbox.mode == SandboxMode::kOff)
    return;
  hide_memory(sandbox.landlock > 0);
  try {
    if (!uses_cuda)
      send_without_sendmsg();
    install_call_filter({uses_cuda, sandbox.mode == SandboxMode::kTrace, needs.opens_connections,
                         needs.limits_memory && !uses_cuda, needs.accepts_connections});
    sandbox.filters_calls = true;
  } catch (const std::system_error& refused) {
    add_lack(sandbox, "no seccomp (" + in_words(refused.code().value()) + ")");
  }
  note_kept(sandbox, needs);
}

void confine_to_descriptors(SandboxMode mode) {
  if (mode == SandboxMode::kOff)
    return;
  renounce_privileges();
  give_up_capabilities();
  lower_descriptor_limit();
  hide_memory(false);
  try {
    restrict_files({});
  } catch (const std::system_error&) {
    // The kernel has no Landlock, which the log says at the start.
  }
  try {
    send_without_sendmsg();
    install_call_filter({});
  } catch (const std::system_error&) {
    // It has no seccomp.
  }
}

}  // namespace torch_remote::server
