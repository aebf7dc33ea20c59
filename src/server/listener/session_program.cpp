#include "server/listener/session_program.h"

#include <algorithm>
#include <array>

#include <unistd.h>

namespace torch_remote::server {
namespace {

// The environment variables that sessions get, by name: those that the C library, OpenMP, MKL,
// oneDNN, libtorch, CUDA and our log read. Not by prefix: NVIDIA_API_KEY and NCCL's plugins begin
// like settings, and so may names that nobody knows yet.
//
// Not formatted by the tool, which would give each a line of its own.
// clang-format off
constexpr auto kSessionVariables = std::to_array<std::string_view>({
    // The C library and the loader. HOME has the caches of CUDA's compiler.
    "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "GLIBC_TUNABLES", "LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION",
    "LC_MEASUREMENT", "LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER",
    "LC_TELEPHONE", "LC_TIME", "MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_CHECK_",
    "MALLOC_CONF", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_PERTURB_",
    "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS",
    "UBSAN_OPTIONS", "ASAN_SYMBOLIZER_PATH",
    // Ours.
    "TORCH_REMOTE_LOG", "TORCH_REMOTE_KEEPALIVE",
    // OpenMP, of both libraries.
    "OMP_AFFINITY_FORMAT", "OMP_CANCELLATION", "OMP_DEFAULT_DEVICE", "OMP_DISPLAY_AFFINITY",
    "OMP_DISPLAY_ENV", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_MAX_TASK_PRIORITY",
    "OMP_NESTED", "OMP_NUM_TEAMS", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    "OMP_SCHEDULE", "OMP_STACKSIZE", "OMP_TEAMS_THREAD_LIMIT", "OMP_THREAD_LIMIT",
    "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "GOMP_DEBUG", "GOMP_SPINCOUNT", "GOMP_STACKSIZE",
    "KMP_AFFINITY", "KMP_ALL_THREADS", "KMP_BLOCKTIME", "KMP_DETERMINISTIC_REDUCTION",
    "KMP_DUPLICATE_LIB_OK", "KMP_FORKJOIN_BARRIER", "KMP_HW_SUBSET", "KMP_INIT_AT_FORK",
    "KMP_LIBRARY", "KMP_REDUCTION_BARRIER", "KMP_SETTINGS", "KMP_STACKSIZE", "KMP_TPAUSE",
    "KMP_WARNINGS",
    // Mathematics on the CPU.
    "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_DISABLE_FAST_MM", "MKL_DOMAIN_NUM_THREADS",
    "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_FAST_MEMORY_LIMIT", "MKL_INTERFACE_LAYER",
    "MKL_NUM_STRIPES", "MKL_NUM_THREADS", "MKL_THREADING_LAYER", "MKL_VERBOSE",
    "OPENBLAS_CORETYPE", "OPENBLAS_MAIN_FREE", "OPENBLAS_NUM_THREADS", "OPENBLAS_VERBOSE",
    "DNNL_DEFAULT_FPMATH_MODE", "DNNL_GRAPH_COMPILED_PARTITION_CACHE_CAPACITY", "DNNL_MAX_CPU_ISA",
    "DNNL_CPU_ISA_HINTS", "DNNL_PRIMITIVE_CACHE_CAPACITY", "DNNL_VERBOSE",
    "ONEDNN_CACHE_CONTEXT_UNSAFE", "ONEDNN_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "ONEDNN_VERBOSE", "LRU_CACHE_CAPACITY",
    // CUDA and its libraries.
    "CUDA_AUTO_BOOST", "CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE", "CUDA_CACHE_PATH",
    "CUDA_COREDUMP_FILE", "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS", "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION", "CUDA_DISABLE_PERF_BOOST", "CUDA_DISABLE_PTX_JIT",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
    "CUDA_FORCE_JIT", "CUDA_FORCE_PTX_JIT", "CUDA_GRAPHS_USE_NODE_PRIORITY", "CUDA_HOME",
    "CUDA_LAUNCH_BLOCKING", "CUDA_LOG_FILE", "CUDA_MANAGED_FORCE_DEVICE_ALLOC",
    "CUDA_MODULE_DATA_LOADING", "CUDA_MODULE_LOADING", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_PATH", "CUDA_SCALE_LAUNCH_QUEUES", "CUDA_VISIBLE_DEVICES", "CUBLASLT_LOG_LEVEL",
    "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_LOGDEST_DBG",
    "CUBLAS_LOGINFO_DBG", "CUBLAS_WORKSPACE_CONFIG", "CUDNN_CONV_WSCAP_DBG", "CUDNN_LOGDEST_DBG",
    "CUDNN_LOGERR_DBG", "CUDNN_LOGINFO_DBG", "CUDNN_LOGLEVEL_DBG", "CUDNN_LOGWARN_DBG",
    "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES",
    "NVRTC_DISABLE_CONCURRENT_NVVM",
    "NCCL_ALGO", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_BUFFSIZE",
    "NCCL_CHECKS_DISABLE", "NCCL_CROSS_NIC", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA",
    "NCCL_IB_RETRY_CNT", "NCCL_IB_TIMEOUT", "NCCL_LAUNCH_MODE", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS", "NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_NSOCKS_PERTHREAD",
    "NCCL_NTHREADS", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO",
    "NCCL_SHM_DISABLE", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_NTHREADS",
    "NCCL_TOPO_FILE", "GLOO_SOCKET_IFNAME",
    // libtorch.
    "ATEN_CPU_CAPABILITY", "PYTORCH_ALLOC_CONF", "PYTORCH_API_USAGE_STDERR",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_JIT_LOG_LEVEL", "PYTORCH_JIT_OPT_LIMIT",
    "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NVML_BASED_CUDA_CHECK",
    "PYTORCH_TENSOREXPR", "PYTORCH_TENSOREXPR_DONT_FUSE", "PYTORCH_TENSOREXPR_FALLBACK",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT",
    "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CPP_LOG_LEVEL", "TORCH_CUDNN_USE_HEURISTIC_MODE_B",
    "TORCH_CUDNN_V8_API_DEBUG", "TORCH_CUDNN_V8_API_DISABLED", "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT",
    "TORCH_CUSTOM_TERMINATE", "TORCH_DISABLE_ADDR2LINE", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_FR_BUFFER_SIZE", "TORCH_GLOO_LAZY_INIT", "TORCH_LINALG_PREFER_CUSOLVER",
    "TORCH_LINEAR_FLATTEN_3D", "TORCH_MKLDNN_MATMUL_MIN_DIM", "TORCH_MKLDNN_MATMUL_MIN_SIZE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_HIGH_PRIORITY", "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_SHOW_CPP_STACKTRACES", "TORCH_SYMBOLIZE_MODE",
});
// clang-format on

}  // namespace

bool is_for_sessions(std::string_view name) {
  return std::ranges::find(kSessionVariables, name) != kSessionVariables.end();
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
    arguments.push_back(options.peer_networks.empty() ? "--peers"
                                                      : "--peers=" + options.peer_networks);
  add("--schemas", options.schema_path);
  if (!options.cache.folder.empty()) {
    add("--cache", options.cache.folder);
    add("--cache-size", std::to_string(options.cache.limit) + "B");
  }
  for (const std::string& folder : options.files)
    add("--files", folder);
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
