#pragma once

#include <chrono>
#include <string_view>

namespace torch_remote::transport {

// What a network would add. Half of the round trip is added on the way out, half on the way in, so
// only one end of a connection is to be wrapped.
struct DelaySpec {
  std::chrono::microseconds rtt{0};
  double mbit_s = 0;                    // each way; 0: no limit
  std::chrono::microseconds jitter{0};  // up to this much more each way, never reordering
};

// "rtt_ms[,mbit_s[,jitter_ms]]", with fractions allowed: "0.5", "20,1000", "20,1000,2". Throws
// std::invalid_argument with a sentence for the user.
DelaySpec parse_delay(std::string_view text);

}  // namespace torch_remote::transport
