#pragma once

#include <array>
#include <cstdint>
#include <span>

#include <ATen/Context.h>

#include "wire/messages.h"

namespace torch_remote::marshal {

// How one setting is read from this process's context and put into it. The client reads, the server writes
// (and reads, to answer what is in force).
struct SettingAccess {
  wire::Setting setting;
  const char* name;  // for people and tests
  int32_t lowest;
  int32_t highest;
  int32_t (*read)(at::Context& context);
  // Of a value in range. Throws what PyTorch says when this build or machine cannot have it.
  void (*write)(at::Context& context, int32_t value);
};

// All of them, in the order of their numbers.
std::span<const SettingAccess> setting_table();

// Values in the order of wire::Setting (index 0 unused).
using ContextValues = std::array<int32_t, wire::kMaxSetting + 1>;

// What they are now, in some 100 ns. The flush-denormal and thread settings are the calling thread's.
ContextValues read_context();

// Note [Fingerprint of the context]
//
// Whether a setting has changed is looked at before each call, so it may cost 20 ns; PyTorch's getters cost from
// 2 to 30 ns each, and there is nothing to subscribe to. The flags of at::Context are plain members, so the
// bytes of the object behind its first member (the once_flags of devices, which are no settings) are taken as
// they are; with the values of its precision table, which are elsewhere, and the three settings that are not in
// it. Bytes that are the same mean that nothing has changed; others say only: look (read_context()).
class ContextFingerprint {  // externally synchronised
 public:
  // Takes it anew: whether it differs from the one before. The first does.
  bool update();

 private:
  static constexpr size_t kFlagBytes =
      sizeof(at::Context) - sizeof(std::array<c10::once_flag, at::COMPILE_TIME_MAX_DEVICE_TYPES>);
  static_assert(kFlagBytes % sizeof(uint64_t) == 0);
  std::array<uint64_t, kFlagBytes / sizeof(uint64_t)> flags_{};
  uint64_t precisions_ = 0;
  uint64_t others_ = 0;  // the number of threads is among them, and never 0
};

}  // namespace torch_remote::marshal
