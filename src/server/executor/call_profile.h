#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "server/device/devices.h"
#include "server/device/streams.h"
#include "wire/figures.h"
#include "wire/limits.h"

namespace torch_remote::server {

// When the devices ran calls, while the client profiles. Confined to the executor thread.
//
// Note [Device times]
//
// A CPU device runs a call while the executor calls the operator, so two readings of the clock are
// its time. On CUDA the executor records an event before and after the call, on the stream that the
// call goes to, and reads them when they have happened: the time includes all kernels of the call,
// and gaps between them. Events know only the time between two of them. So the executor records an
// event and reads the clock when it starts and when it stops, with the device idle: both lie on the
// axis of the clock, and what is between them is scaled.
class CallProfile {
 public:
  CallProfile(const Devices& devices, const Streams& streams)
      : devices_(devices), streams_(streams) {}

  ~CallProfile();
  CallProfile(const CallProfile&) = delete;
  CallProfile& operator=(const CallProfile&) = delete;

  // Nanoseconds of the clock that all times are of.
  static uint64_t now();

  bool is_on() const { return is_on_; }

  void start();
  // Stops, and gives the oldest kMaxProfiledBatch calls away.
  wire::CallTimes take();

  // Measures the call during its lifetime, if the profile is on. Does not throw.
  class Timer {
   public:
    Timer(CallProfile& profile, uint64_t call, uint8_t device) : profile_(profile) {
      if (profile.is_on()) [[unlikely]]
        begin(call, device);
    }

    ~Timer() {
      if (is_begun_) [[unlikely]]
        end();
    }

    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    void begin(uint64_t call, uint8_t device) noexcept;
    void end() noexcept;

    CallProfile& profile_;
    bool is_begun_ = false;
  };

 private:
  // A call that CUDA may not have finished.
  struct Pending {
    uint64_t call = 0;
    uint8_t device = 0;
    uint8_t stream = 0;
    void* begin = nullptr;
    void* end = nullptr;
  };

  struct Measured {
    wire::CallTime time;  // on CUDA until stop(): `begin` is since the first anchor
    uint8_t device = 0;
  };

  // An event of an idle device, and the time of the clock at which it happened.
  struct Anchor {
    void* event = nullptr;
    uint64_t time = 0;
  };

  void stop();
  Anchor anchor(uint8_t device);
  void record(void*& event, uint8_t device);
  void* take_event(uint8_t device);
  void give_back(Pending& pending);
  // Reads the events of calls that are done; waits until at most `most` are left.
  void settle(size_t most);
  void add(const Measured& measured);
  // Moves the times of a device from its first anchor's axis to the clock's.
  void scale(uint8_t device, const Anchor& last);
  void drop_events() noexcept;

  const Devices& devices_;
  const Streams& streams_;
  bool is_on_ = false;
  uint64_t dropped_ = 0;
  Pending current_;             // the call that is being measured
  uint64_t current_begin_ = 0;  // on a CPU
  std::deque<Measured> calls_;  // at most wire::kMaxProfiledCalls
  std::deque<Pending> pending_;
  std::array<std::vector<void*>, wire::kMaxDevices> events_;  // that are free, by device
  std::array<Anchor, wire::kMaxDevices> first_{};             // by device
};

}  // namespace torch_remote::server
