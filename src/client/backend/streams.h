#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torch_remote::client {

// Streams and events of remote devices, for the guard: Note [Streams] in wire/streams.h. A stream's
// id is its number. Nothing here waits, unless it says so.

// A device without an index is the current one.
c10::Device with_index(c10::Device device);
c10::Stream new_stream(c10::Device device, bool has_high_priority);
// Refuses an id that no stream of a remote device has: the server would end the session.
void check_stream(const c10::Stream& stream);

// An event. Made by the first record_event(), which starts the machine of the device if need be.
struct Event;

void record_event(Event*& event, const c10::Stream& stream, c10::EventFlag flag);
// What is sent to the stream from now on waits for the event. Where the stream is another server's,
// this waits for it.
void wait_for_event(const Event& event, const c10::Stream& stream);
void destroy_event(Event* event) noexcept;
// Whether it has happened. Asks a CUDA server, when it has reached the event.
bool has_happened(const Event& event);
// Waits.
void synchronize_event(const Event& event);
double elapsed_milliseconds(const Event& first, const Event& second);

bool is_done(const c10::Stream& stream);
// Waits.
void synchronize_stream(const c10::Stream& stream);
// The stream uses the memory: freed, it is not reused before that is done.
void record_stream(const c10::DataPtr& data, const c10::Stream& stream);

}  // namespace torch_remote::client
