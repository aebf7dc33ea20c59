#include "server/device/nvml.h"

#include <algorithm>
#include <vector>

#include <dlfcn.h>

#include "server/device/cuda_properties.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// From nvml.h; these numbers, names and structures are part of the library's ABI.
constexpr int kNvmlSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr int kDieSensor = 0;
constexpr int kSmClock = 1;
using Handle = void*;

struct UtilizationRates {
  unsigned gpu = 0;
  unsigned memory = 0;
};

struct MemoryInfo {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

struct ProcessInfo {
  unsigned pid = 0;
  unsigned long long used_memory = 0;  // all bits: not available
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
};

// The function of this name is called if the library has it. Returns NVML's status.
template <typename... Arguments>
int call(void* library, const char* name, Arguments... arguments) {
  constexpr int kFunctionNotFound = 13;
  const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library, name));
  return function == nullptr ? kFunctionNotFound : function(arguments...);
}

void read_processes(void* library, Handle device, wire::Telemetry& telemetry) {
  constexpr const char* kFunction = "nvmlDeviceGetComputeRunningProcesses_v3";
  std::vector<ProcessInfo> found;
  unsigned count = 0;
  int status = call(library, kFunction, device, &count, static_cast<ProcessInfo*>(nullptr));
  for (int tries = 0; status == kInsufficientSize && tries < 3; ++tries) {
    count = std::min<unsigned>(count + 8, wire::kMaxGpuProcesses);  // more may start meanwhile
    found.resize(count);
    status = call(library, kFunction, device, &count, found.data());
  }
  telemetry.has_processes = status == kNvmlSuccess;
  if (!telemetry.has_processes)
    return;
  found.resize(std::min<size_t>(count, found.size()));
  for (const ProcessInfo& process : found) {
    const bool is_known = process.used_memory != ~0ULL;
    telemetry.processes.push_back({process.pid, is_known, is_known ? process.used_memory : 0});
  }
}

void read_figures(void* library, Handle device, wire::Telemetry& telemetry) {
  using enum wire::TelemetryFigure;
  unsigned number = 0;
  UtilizationRates rates;
  if (call(library, "nvmlDeviceGetUtilizationRates", device, &rates) == kNvmlSuccess) {
    telemetry.set(kUtilization, rates.gpu);
    telemetry.set(kMemoryUsage, rates.memory);
  }
  MemoryInfo memory;
  if (call(library, "nvmlDeviceGetMemoryInfo", device, &memory) == kNvmlSuccess)
    telemetry.set(kMemoryUsed, memory.used);
  if (call(library, "nvmlDeviceGetTemperature", device, kDieSensor, &number) == kNvmlSuccess)
    telemetry.set(kTemperature, number);
  if (call(library, "nvmlDeviceGetPowerUsage", device, &number) == kNvmlSuccess)
    telemetry.set(kPowerDraw, number);
  if (call(library, "nvmlDeviceGetClockInfo", device, kSmClock, &number) == kNvmlSuccess)
    telemetry.set(kClockRate, number);
}

}  // namespace

Nvml::Nvml(const char* library) : library_(::dlopen(library, RTLD_LAZY | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    reason_ = "NVML is not installed there";
  } else if (const int status = call(library_, "nvmlInit_v2"); status != kNvmlSuccess) {
    reason_ = "NVML does not start there (error " + std::to_string(status) + ")";
    library_ = nullptr;
  }
}

wire::Telemetry Nvml::read(const std::string& bus) const {
  wire::Telemetry telemetry;
  telemetry.reason = reason_;
  if (library_ == nullptr)
    return telemetry;
  Handle device = nullptr;
  const int status = call(library_, "nvmlDeviceGetHandleByPciBusId_v2", bus.c_str(), &device);
  if (status != kNvmlSuccess) {
    telemetry.reason =
        "NVML does not know the GPU at " + bus + " (error " + std::to_string(status) + ")";
    return telemetry;
  }
  read_figures(library_, device, telemetry);
  read_processes(library_, device, telemetry);
  return telemetry;
}

wire::Telemetry cuda_telemetry(int index) {
  static const Nvml nvml;
  return nvml.read(cuda_bus(index));
}

}  // namespace torch_remote::server
