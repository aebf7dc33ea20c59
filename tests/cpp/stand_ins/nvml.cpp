// Stands in for libnvidia-ml.so.1: one GPU at the bus 0000:02:00.0, which does not tell its power.
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;

struct Rates {
  unsigned gpu, memory;
};

struct Memory {
  unsigned long long total, free, used;
};

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

int the_device;

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

int nvmlInit_v2() {
  return kSuccess;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  if (std::strcmp(bus, "0000:02:00.0") != 0)
    return kNotFound;
  *device = &the_device;
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(void* /*device*/, Rates* rates) {
  *rates = {42, 17};
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(void* /*device*/, Memory* memory) {
  *memory = {4ULL << 30, 1ULL << 30, 3ULL << 30};
  return kSuccess;
}

int nvmlDeviceGetTemperature(void* /*device*/, int sensor, unsigned* degrees) {
  *degrees = sensor == 0 ? 55 : 0;
  return kSuccess;
}

int nvmlDeviceGetPowerUsage(void* /*device*/, unsigned* /*milliwatts*/) {
  return kNotSupported;
}

int nvmlDeviceGetClockInfo(void* /*device*/, int clock, unsigned* rate) {
  *rate = clock == 1 ? 1980 : 1;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* /*device*/, unsigned* count, Process* processes) {
  const unsigned room = *count;
  *count = 2;
  if (processes == nullptr || room < 2)
    return kInsufficientSize;
  processes[0] = {1234, 1 << 20, 0, 0};
  processes[1] = {5678, ~0ULL, 0, 0};
  return kSuccess;
}

}  // extern "C"
