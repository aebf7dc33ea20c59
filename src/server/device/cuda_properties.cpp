#include "server/device/cuda_properties.h"

#include <array>

#include <dlfcn.h>

#include "base/log.h"

namespace torch_remote::server {
namespace {

// From cuda.h; these numbers are part of the driver's ABI.
constexpr int kCudaSuccess = 0;
constexpr int kMultiprocessorCount = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
using Device = int;

struct Driver {
  int (*get)(Device* device, int ordinal) = nullptr;
  int (*get_name)(char* name, int length, Device device) = nullptr;
  int (*total_memory)(size_t* bytes, Device device) = nullptr;
  int (*get_attribute)(int* value, int attribute, Device device) = nullptr;
  int (*get_bus)(char* bus, int length, Device device) = nullptr;

  bool is_complete() const {
    return get != nullptr && get_name != nullptr && total_memory != nullptr &&
           get_attribute != nullptr;
  }
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

// torch has loaded the library already. Neither torch nor we ever unload it.
Driver load_driver() {
  Driver driver;
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr)
    return driver;
  find(library, "cuDeviceGet", driver.get);
  find(library, "cuDeviceGetName", driver.get_name);
  find(library, "cuDeviceTotalMem_v2", driver.total_memory);
  find(library, "cuDeviceGetAttribute", driver.get_attribute);
  find(library, "cuDeviceGetPCIBusId", driver.get_bus);
  return driver;
}

const Driver& the_driver() {
  static const Driver driver = load_driver();
  return driver;
}

void read_attribute(const Driver& driver, Device device, int attribute, uint32_t& into) {
  int value = 0;
  if (driver.get_attribute(&value, attribute, device) == kCudaSuccess && value > 0)
    into = static_cast<uint32_t>(value);
}

}  // namespace

void describe_cuda_device(int index, wire::DeviceProperties& properties) {
  const Driver& driver = the_driver();
  Device device = 0;
  if (!driver.is_complete() || driver.get(&device, index) != kCudaSuccess) {
    log(LogLevel::kWarning, "the CUDA driver does not describe a device", {{"device", index}});
    return;
  }
  std::array<char, 256> name{};
  if (driver.get_name(name.data(), static_cast<int>(name.size()) - 1, device) == kCudaSuccess)
    properties.name = name.data();
  size_t bytes = 0;
  if (driver.total_memory(&bytes, device) == kCudaSuccess)
    properties.total_memory = bytes;
  read_attribute(driver, device, kCapabilityMajor, properties.major);
  read_attribute(driver, device, kCapabilityMinor, properties.minor);
  read_attribute(driver, device, kMultiprocessorCount, properties.multi_processors);
}

std::string cuda_bus(int index) {
  const Driver& driver = the_driver();
  Device device = 0;
  std::array<char, 64> bus{};
  if (!driver.is_complete() || driver.get_bus == nullptr ||
      driver.get(&device, index) != kCudaSuccess ||
      driver.get_bus(bus.data(), static_cast<int>(bus.size()) - 1, device) != kCudaSuccess)
    return {};
  return bus.data();
}

}  // namespace torch_remote::server
