#pragma once

namespace torch_remote::client {

// Note [Profiles]
//
// torch.profiler collects what a process does through Kineto, a part of libtorch. Kineto asks our
// IActivityProfiler for the device's part: it tells when a profile starts and stops, and which
// operation each thread is in. The server then measures each call (Note [Device times] in
// server/executor/call_profile.h), and sends the times when the profile stops. They become slices
// of the device's row, each linked to the operation that had made the call (Note [Calls of
// operations] in client/backend/device_profile.h). Without a profile nothing of this runs.

// False: this build of torch has no Kineto, or no headers for it.
bool has_profiler();

// Tells Kineto of the device. Call it once.
void register_profiler();

}  // namespace torch_remote::client
