#pragma once

#include <string>

#include "wire/figures.h"

namespace torch_remote::server {

// NVML, NVIDIA's library for figures of a GPU. It is loaded at its first use, if it is there.
class Nvml {
 public:
  explicit Nvml(const char* library = "libnvidia-ml.so.1");

  // The figures of the GPU at this PCI bus ("0000:01:00.0"). A figure that the GPU does not tell
  // stays unknown. Without NVML, `reason` says why there are none.
  wire::Telemetry read(const std::string& bus) const;

 private:
  void* library_ = nullptr;  // never unloaded
  std::string reason_;       // why there is no library
};

// The same for a device of PyTorch's numbering.
wire::Telemetry cuda_telemetry(int index);

}  // namespace torch_remote::server
