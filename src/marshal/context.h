#pragma once

#include <array>
#include <cstdint>
#include <span>

#include <ATen/Context.h>

#include "wire/messages.h"

namespace torch_remote::marshal {

// How one setting is read from and written to at::Context. The client reads; the server writes, and
// reads to answer queries.
struct SettingAccess {
  wire::Setting setting;
  const char* name;  // for people and tests
  int32_t lowest;
  int32_t highest;
  int32_t (*read)(at::Context& context);
  // `value` is in range. Throws PyTorch's error when this build or machine does not support it.
  void (*write)(at::Context& context, int32_t value);
};

// In the order of their numbers.
std::span<const SettingAccess> setting_table();

// Values in the order of wire::Setting (index 0 unused).
using ContextValues = std::array<int32_t, wire::kMaxSetting + 1>;

// The settings that each thread has for itself.
struct ThreadSettings {
  int32_t threads = 0;  // PyTorch's number of threads; 0: not read yet
  int32_t flush_denormal = 0;
};

// Those of the calling thread.
ThreadSettings read_thread_settings();

// Takes about 100 ns. The settings of a thread are those of the calling one.
ContextValues read_context();

// Note [Fingerprint of the context]
//
// The client checks before each call whether a setting has changed, which may cost 20 ns. PyTorch's
// getters cost 2 to 30 ns each and it reports no changes. But its flags are plain members, so
// update() compares the bytes of at::Context (without the first member: once_flags), the values of
// its precision table and the three settings kept elsewhere. Equal bytes mean that nothing changed;
// after a difference read_context() finds out what. The settings of a thread are given, for they
// need not be those of the calling thread (Note [Settings of a backward]).
class ContextFingerprint {  // externally synchronised
 public:
  // True when it differs from the last time, and the first time.
  bool update(ThreadSettings thread);

 private:
  static constexpr size_t kFlagBytes =
      sizeof(at::Context) - sizeof(std::array<c10::once_flag, at::COMPILE_TIME_MAX_DEVICE_TYPES>);
  static_assert(kFlagBytes % sizeof(uint64_t) == 0);
  std::array<uint64_t, kFlagBytes / sizeof(uint64_t)> flags_{};
  uint64_t precisions_ = 0;
  uint64_t others_ = 0;  // never 0, because the number of threads is in it
};

}  // namespace torch_remote::marshal
