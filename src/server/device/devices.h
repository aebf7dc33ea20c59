#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "wire/handshake.h"

namespace torch_remote::server {

// The devices of a session, by the session's numbers. CPU devices are simulated: they share the
// processor, but have their own storages and generators. Immutable.
class Devices {
 public:
  // `wanted` is auto, cpu, cuda or cuda:n. Asks CUDA, so call it only in a session's own process.
  // Throws std::invalid_argument with a message for the user.
  static Devices choose(const std::string& wanted, unsigned simulated);

  Devices(c10::DeviceType type, unsigned count, c10::DeviceIndex first = 0);

  unsigned count() const { return count_; }

  bool is_cuda() const { return type_ == c10::DeviceType::CUDA; }

  // Throws ProtocolError when there is no such device.
  c10::Device device(uint8_t index) const;
  // The session's number for a device.
  uint8_t index_of(c10::Device device) const;
  // Waits until the device has done its work. Throws the device's error.
  void synchronize(uint8_t index) const;

  std::vector<wire::DeviceProperties> properties() const;

 private:
  c10::DeviceType type_;
  unsigned count_;
  c10::DeviceIndex first_;  // CUDA: the device that is the session's device 0
};

// Fills in the facts about oneDNN and cuDNN that decide the branches of composite operators.
void describe_libraries(wire::Welcome& welcome);

// Throws std::invalid_argument, for the user, unless it is auto, cpu, cuda or cuda:n. Does not ask
// whether there is such a device.
void check_device_name(const std::string& wanted);

}  // namespace torch_remote::server
