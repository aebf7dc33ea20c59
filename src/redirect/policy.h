#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace torch_remote::redirect {

// Which device a program asked for, and which one it gets. Pure: nothing here looks at the machine,
// so that tests try every hardware. docs/redirection.md has the table.

enum class Kind : uint8_t { kNone, kCpu, kCuda, kMps, kRemote, kToggle, kOther };

// Ordered: a caller's own limit and the policy in force are combined with std::min.
enum class Policy : uint8_t {
  kOff,             // nothing is redirected
  kForeign,         // only accelerators that are not here; cpu and no device stay
  kForeignDefault,  // the same, and no device is one: set_default_tensor_type(torch.cuda...)
  kFull,            // the whole table
};

constexpr int kNoIndex = -1;
constexpr int kMaxIndex = 127;  // of c10::DeviceIndex
constexpr int kCurrent = -2;    // in a decision: the index of the thread's current device

struct Request {
  Kind kind = Kind::kNone;  // kToggle: "cpu:-1"; kOther: meta and every other device
  int index = kNoIndex;
};

// Where accelerators are looked for, best first. CPU is what is left.
using Order = std::array<Kind, 3>;

constexpr Order default_order(bool is_macos) {
  if (is_macos)
    return {Kind::kMps, Kind::kCuda, Kind::kRemote};
  return {Kind::kCuda, Kind::kMps, Kind::kRemote};
}

// Who turned the CPU override on: "cpu:-1", open scopes of cpu_override(), or both.
constexpr uint8_t kByToggle = 1;
constexpr uint8_t kByScope = 2;

// What exists, and what the user set. Eight bytes, so that threads can read it without a lock.
struct Situation {
  uint8_t cuda = 0;    // number of devices; a CUDA build of torch without a GPU has 0
  uint8_t remote = 0;  // number of devices; 0: no remote machine is configured
  bool mps = false;
  Policy policy = Policy::kOff;
  uint8_t override_by = 0;  // kByToggle, kByScope
  Order order = default_order(false);

  bool is_overridden() const { return override_by != 0; }
};

static_assert(sizeof(Situation) == 8);

enum class Reason : uint8_t {
  kAsAsked,      // not redirected
  kNoDevice,     // no device was named
  kCpuAsked,     // cpu was named
  kNotHere,      // the accelerator that was named is not the one in use
  kNoSuchIndex,  // also not here, and the accelerator in use has no device of that index
  kOverride,     // the CPU override is on
  kToggledOn,    // "cpu:-1" turned the override on
  kToggledOff,   // "cpu:-1" turned it off
  kGenerator,    // the call has a generator, which decides
  kDrawnOnCpu,   // the tensor stays, and a generator of the CPU draws its numbers
};

struct Decision {
  Kind kind = Kind::kNone;
  int index = kNoIndex;
  Reason reason = Reason::kAsAsked;

  bool is_redirected() const { return reason != Reason::kAsAsked; }
};

// The first of the order that exists, else kCpu.
Kind choose_accelerator(const Situation& situation);

// The CPU under the override, else the accelerator.
Decision decide_default(const Situation& situation, Reason reason);

// A decision with kToggledOn or kToggledOff asks the caller to change the override.
Decision decide(const Request& request, const Situation& situation);

// "cuda:1"; "no device" for kNone, "cpu:-1" for kToggle.
std::string to_text(const Request& request);
const char* to_text(Kind kind);
const char* to_text(Reason reason);

// Whether what was asked and what is used say it already: the log does without it.
bool is_evident(Reason reason);

}  // namespace torch_remote::redirect
