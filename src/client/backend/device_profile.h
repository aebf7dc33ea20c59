#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "client/process/lines.h"
#include "client/session/session.h"
#include "wire/figures.h"

namespace torch_remote::client {

// A call as the device ran it. Times are nanoseconds since 1970 by this process's clock.
struct DeviceCall {
  uint64_t number = 0;  // Note [Numbers of calls] in wire/messages.h
  std::string name;     // "add" for aten::add.Tensor
  CallSite site;
  int64_t begin = 0;
  int64_t duration = 0;
  uint8_t stream = 0;
  uint64_t operation = 0;  // the innermost operation that had made it; 0: none
};

// The two clocks at one moment, in nanoseconds.
struct ClockReading {
  int64_t here = 0;   // since 1970
  int64_t there = 0;  // the server's
  int64_t error = 0;  // they may differ by so much from what they were at that moment
};

// What the server's time is by this process's clock. Between two readings the difference of the
// clocks changes evenly.
int64_t to_local_time(uint64_t there, const ClockReading& first, const ClockReading& last);

// Which operation had made a call.
//
// Note [Calls of operations]
//
// The profiler tells when an operation begins and ends, on the operation's thread; calls do not
// know of it, and cost the same with and without a profile. So each beginning and end is noted with
// the number of the session's last call. An operation's calls are those of its thread whose numbers
// lie between the two. Calls know their thread (CallSite::thread).
// Worker threads of autograd share that number with the thread that called backward(), hence
// `worker`, which tells them apart.
class OperationMarks {
 public:
  void begin(uint64_t operation, uint64_t last_call, uint64_t thread, uint64_t worker);
  void end(uint64_t last_call, uint64_t thread, uint64_t worker);

  // Sets `operation` of the calls, which are in the order of their numbers.
  void assign(std::vector<DeviceCall>& calls) const;

 private:
  struct Mark {
    uint64_t operation = 0;  // 0: an end
    uint64_t last_call = 0;
    uint64_t thread = 0;
    uint64_t worker = 0;
  };

  std::vector<Mark> marks_;
};

// The times of a session's calls from its construction on. Thread-safe.
class DeviceProfile {
 public:
  // Asks the server to measure calls, and compares the clocks. Waits. Raises if it cannot.
  explicit DeviceProfile(Session& session);

  Session& session() { return session_; }

  // This thread begins an operation of the profiler, or ends its last one. Sends nothing.
  void begin_operation(uint64_t operation);
  void end_operation();

  // Waits until the calls are done. Call it once. `dropped` is how many calls were forgotten.
  std::vector<DeviceCall> finish(uint64_t& dropped);

 private:
  std::vector<wire::CallTime> take_times(uint64_t& dropped);

  Session& session_;
  uint64_t last_before_ = 0;  // the last call that is not part of the profile
  ClockReading first_;
  Mutex mutex_;
  OperationMarks marks_ GUARDED_BY(mutex_);
};

// The server is new enough for a profile. Waits for the handshake.
bool can_profile(Session& session);

// What profiles lack, and why, until Python warns of it. Thread-safe.
void add_profile_note(std::string text);
std::vector<std::string> take_profile_notes();

}  // namespace torch_remote::client
