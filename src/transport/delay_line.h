#pragma once

#include <memory>

#include "transport/delay_spec.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// Adds delay and a bandwidth limit to a stream, for tests and benchmarks. Bytes written together
// are passed on together when they are due, so delays do not add up over frames. As with a socket,
// a write waits while 4 MiB are queued. Bytes written before shutdown() still arrive.
std::unique_ptr<Stream> delayed(std::unique_ptr<Stream> inner, const DelaySpec& spec);

}  // namespace torch_remote::transport
