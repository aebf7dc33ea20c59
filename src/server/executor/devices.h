#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "wire/handshake.h"

namespace torch_remote::server {

// The devices of a session: a session's device n is device(n) here. On CPU they are simulated: n
// devices that share one processor but not a storage or a generator. Immutable.
class Devices {
 public:
  // `wanted` is auto, cpu, cuda or cuda:n. Asks CUDA, so only in a session's own process.
  // Throws std::invalid_argument with a sentence for the user.
  static Devices choose(const std::string& wanted, unsigned simulated);

  Devices(c10::DeviceType type, unsigned count, c10::DeviceIndex first = 0);

  unsigned count() const { return count_; }

  bool is_cuda() const { return type_ == c10::DeviceType::CUDA; }

  // Throws ProtocolError for a device that is not there.
  c10::Device device(uint8_t index) const;
  // A device's number in the session.
  uint8_t index_of(c10::Device device) const;
  // Work queued on it is done. Throws what went wrong there.
  void synchronize(uint8_t index) const;

  std::vector<wire::DeviceProperties> properties() const;

 private:
  c10::DeviceType type_;
  unsigned count_;
  c10::DeviceIndex first_;  // CUDA: the device that is the session's device 0
};

// What of the server's oneDNN and cuDNN decides the branch that composite operators take.
void describe_libraries(wire::Welcome& welcome);

}  // namespace torch_remote::server
