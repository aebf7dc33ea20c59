#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "transport/stream.h"

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

// Adds delay and a bandwidth limit to a stream, for tests and benchmarks. Bytes written together
// are passed on together when they are due, so delays do not add up over frames. As with a socket,
// a write waits while 4 MiB are queued. Bytes written before shutdown() still arrive.
std::unique_ptr<Stream> delayed(std::unique_ptr<Stream> inner, const DelaySpec& spec);

}  // namespace torch_remote::transport
