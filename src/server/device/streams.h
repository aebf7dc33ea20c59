#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include "base/hash.h"
#include "server/device/devices.h"
#include "wire/limits.h"
#include "wire/streams.h"

namespace torch_remote::server {

class Completions;

// The streams and events of a session: Note [Streams] in wire/streams.h. Confined to the executor
// thread, whose current CUDA streams it sets.
class Streams {
 public:
  explicit Streams(const Devices& devices);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The stream, by number, that calls on the device go to.
  uint8_t current(uint8_t device) const { return current_[device]; }

  // More than the default streams have been used.
  bool has_several() const { return has_several_; }

  void use(uint8_t device, uint64_t stream);
  void record(uint64_t event, uint8_t device, uint64_t stream, bool is_timed);
  void wait(uint64_t event, uint8_t device, uint64_t stream);
  void forget(uint64_t event);
  // The memory is not reused before the stream has done its work so far.
  void record_stream(const c10::DataPtr& memory, uint8_t device, uint64_t stream);
  // The stream that calls on the device go to waits for the work of another.
  void join(uint8_t device, uint64_t other);

  bool has_happened(uint64_t event);
  bool is_done(uint8_t device, uint64_t stream);
  double elapsed(uint64_t first, uint64_t second);

  // Calls `on_done` when the event has happened, or the stream has done its work so far; with an
  // exception if the device failed. On a CPU at once, else on another thread. The executor goes on.
  using OnDone = std::function<void(std::exception_ptr)>;
  void when_happened(uint64_t event, OnDone on_done);
  void when_done(uint8_t device, uint64_t stream, OnDone on_done);

  // For work that belongs to another stream than the current one of the device.
  class Scope {
   public:
    Scope(Streams& streams, uint8_t device, uint8_t stream);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Streams& streams_;
    const uint8_t device_;
    const uint8_t before_;
  };

 private:
  struct Event;
  using EventPtr = std::shared_ptr<Event>;

  c10::Stream native(uint8_t device, uint64_t stream);
  EventPtr find(uint64_t event) const;
  EventPtr record_now(uint8_t device, uint64_t stream, bool is_timed);
  void set_native(uint8_t device, uint64_t stream);
  void wait_later(EventPtr event, OnDone on_done);

  const Devices& devices_;
  bool has_several_ = false;
  std::array<uint8_t, wire::kMaxDevices> current_{};  // by device
  std::array<std::vector<std::unique_ptr<c10::Stream>>, wire::kMaxDevices> made_;
  std::unordered_map<uint64_t, EventPtr, NameHash> events_;  // by name
  // By Event::line: a read of one stream does not wait for the work of another.
  std::unordered_map<uint64_t, std::unique_ptr<Completions>> completions_;
};

}  // namespace torch_remote::server
