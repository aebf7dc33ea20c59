#pragma once

#include <memory>

#include "transport/delay_spec.h"
#include "transport/stream.h"

namespace torch_remote::transport {

// A delay line, for tests and benchmarks: each run of bytes gets a due time when it is written and
// is passed on then, so the delay appears once and not once per frame, and any number of bytes can
// be under way. As with a socket, a write waits while 4 MiB wait for a limited link. shutdown()
// lets what was written still arrive.
std::unique_ptr<Stream> delayed(std::unique_ptr<Stream> inner, const DelaySpec& spec);

}  // namespace torch_remote::transport
