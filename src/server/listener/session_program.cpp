#include "server/listener/session_program.h"

#include <algorithm>
#include <array>

#include <unistd.h>

namespace torch_remote::server {
namespace {

constexpr std::array<std::string_view, 10> kVariables{"HOME",  // caches of CUDA's compiler
                                                      "LANG",
                                                      "TZ",
                                                      "TMPDIR",
                                                      "XDG_CACHE_HOME",
                                                      "LD_LIBRARY_PATH",
                                                      "LD_PRELOAD",
                                                      "GLIBC_TUNABLES",
                                                      "TORCH_REMOTE_LOG",
                                                      "TORCH_REMOTE_KEEPALIVE"};

constexpr std::array<std::string_view, 24> kPrefixes{
    "LC_",     "MALLOC_",  "OMP_",    "GOMP_",  "KMP_",   "MKL_",   "OPENBLAS_", "DNNL_",
    "ONEDNN_", "CUDA_",    "CUBLAS_", "CUDNN_", "CUFFT_", "NCCL_",  "NVIDIA_",   "NVRTC_",
    "TORCH_",  "PYTORCH_", "ATEN_",   "C10_",   "ASAN_",  "UBSAN_", "LSAN_",     "TSAN_"};

// Settings of clients and of the listener begin like torch's own.
constexpr std::string_view kOurs = "TORCH_REMOTE_";

}  // namespace

bool is_for_sessions(std::string_view name) {
  if (std::ranges::find(kVariables, name) != kVariables.end())
    return true;
  return !name.starts_with(kOurs) && std::ranges::any_of(kPrefixes, [&](std::string_view prefix) {
    return name.starts_with(prefix);
  });
}

std::vector<std::string> session_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (is_for_sessions(text.substr(0, text.find('='))))
      kept.emplace_back(text);
  }
  return kept;
}

SessionProgram session_program(const ServeOptions& options) {
  const auto milliseconds = [](std::chrono::milliseconds time) {
    return std::to_string(time.count()) + "ms";
  };
  std::vector<std::string> arguments{"torch-remote-server", "serve", kExecutedOption};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty())
      arguments.insert(arguments.end(), {name, value});
  };
  add("--device", options.device);
  add("--devices", std::to_string(options.simulated_devices));
  add("--lease", milliseconds(options.lease));
  add("--idle-timeout", milliseconds(options.limits.idle));
  add("--max-lifetime", milliseconds(options.limits.age));
  if (options.max_memory != UINT64_MAX)
    add("--max-memory", std::to_string(options.max_memory) + "B");
  add("--sandbox", to_text(options.sandbox));
  if (options.has_peers)
    arguments.emplace_back("--peers");
  add("--log-calls", options.call_log);
  add("--schemas", options.schema_path);
  if (!options.cache.folder.empty()) {
    add("--cache", options.cache.folder);
    add("--cache-size", std::to_string(options.cache.limit) + "B");
  }
  add("--cert", options.tls_files.cert);
  add("--key", options.tls_files.key);
  add("--client-ca", options.tls_files.client_ca);
  if (options.parent_pid != 0)
    add("--parent-pid", std::to_string(options.parent_pid));
  for (const std::string& library : options.libraries)
    add("--library", library);
  return {"/proc/self/exe", std::move(arguments)};
}

}  // namespace torch_remote::server
