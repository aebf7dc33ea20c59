#pragma once

#include <chrono>
#include <string_view>

namespace torch_remote::transport {

// A simulated network. Half of the round trip is added to each direction, so wrap only one end of a
// connection.
struct DelaySpec {
  std::chrono::microseconds rtt{0};
  double mbit_s = 0;                    // each way; 0: no limit
  std::chrono::microseconds jitter{0};  // up to this much more each way; never reorders
};

// Reads "rtt_ms[,mbit_s[,jitter_ms]]", fractions allowed: "0.5", "20,1000,2". Throws
// std::invalid_argument with a message for the user.
DelaySpec parse_delay(std::string_view text);

}  // namespace torch_remote::transport
