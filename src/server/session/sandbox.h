#pragma once

#include <string>
#include <vector>

namespace torch_remote::server {

// Note [The sandbox]
//
// Kernels of PyTorch trust their arguments, so a hostile client may take its session over. Then the
// process must not be worth having: it gives up what it does not need, in two steps.
//
//   files   when the libraries are loaded, before a driver starts threads: Landlock is for the
//           thread that asks for it and those that it starts later. Capabilities are given up in
//           the same step; they too belong to a thread and those that it starts later
//   calls   when the devices are chosen: seccomp, for all threads
//
// All sessions do this: those of a listener before they have a client, those of `serve --stdio` and
// embedded ones when their client has proven itself. What they need later is open by then, or comes
// as a descriptor over the socket from the listener.
enum class SandboxMode {
  kAuto,  // what the kernel has
  kOff,
  kTrace,  // as kAuto, and what is refused is printed: Note [Traced calls]
};

// "auto", "off" or "trace". Throws std::invalid_argument.
SandboxMode parse_sandbox(const std::string& text);
std::string to_text(SandboxMode mode);

// What a session needs beyond what libtorch and CUDA do.
struct SandboxNeeds {
  bool opens_connections = false;         // TCP, to sessions of other servers: `serve --peers`
  bool limits_memory = false;             // on a CPU: Note [Memory that the kernel limits]
  bool accepts_connections = false;       // of a socket that it has: Note [Relaunch]
  bool may_use_gpu = true;                // is not told to use the CPU
  std::vector<std::string> folders = {};  // that it reads: `serve --files`
};

// What is in force.
struct Sandbox {
  SandboxMode mode = SandboxMode::kOff;
  bool filters_calls = false;
  int landlock = 0;  // its version; 0: files are not confined
  // What the kernel does not have or refused, and what sessions keep on request; for people.
  std::string lacks;

  // "seccomp, Landlock ABI 4; no signal scope"
  std::string describe() const;
};

// Whether there is a GPU of NVIDIA, whether or not this process can use it.
bool has_gpu() noexcept;
// Whether this value of CUDA_VISIBLE_DEVICES shows no GPU to CUDA. Null: the variable is not set.
bool hides_every_gpu(const char* visible_devices) noexcept;

// What a session will have on this kernel.
Sandbox expected_sandbox(SandboxMode mode, const SandboxNeeds& needs);
// The first step. What the kernel refuses is noted in the result.
Sandbox confine_files(SandboxMode mode, const SandboxNeeds& needs);
// The second step.
void confine_calls(Sandbox& sandbox, const SandboxNeeds& needs, bool uses_cuda);

// A process that speaks to one peer by a descriptor that it has, and needs nothing else.
void confine_to_descriptors(SandboxMode mode);

}  // namespace torch_remote::server
