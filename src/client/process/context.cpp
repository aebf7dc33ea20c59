#include "client/process/context.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include "marshal/context.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using wire::Setting;

int32_t& value_of(ContextValues& values, Setting setting) {
  return values[static_cast<size_t>(setting)];
}

ContextValues read_for(const marshal::ThreadSettings& thread) {
  ContextValues now = marshal::read_context();
  value_of(now, Setting::kThreads) = thread.threads;
  value_of(now, Setting::kFlushDenormal) = thread.flush_denormal;
  return now;
}

}  // namespace

ContextValues current_context() {
  const auto known = current_settings();
  return read_for(known ? *known : marshal::read_thread_settings());
}

const wire::Context* ContextMirror::find_changes() {
  const ContextValues now = read_for(thread_);
  changed_.settings.clear();
  for (size_t i = 1; i < now.size(); ++i)
    if (!has_sent_ || sent_[i] != now[i])
      changed_.settings.push_back({static_cast<Setting>(i), now[i]});
  sent_ = now;
  has_sent_ = true;
  return changed_.settings.empty() ? nullptr : &changed_;
}

uint8_t read_environment() {
  const at::Context& context = at::globalContext();
  const auto dtype = marshal::to_wire(c10::typeMetaToScalarType(c10::get_default_dtype()));
  return static_cast<uint8_t>(static_cast<uint8_t>(dtype.value_or(wire::Dtype::kFloat32)) |
                              (context.deterministicAlgorithms() ? 32 : 0) |
                              (context.deterministicFillUninitializedMemory() ? 64 : 0));
}

NamedSettings named_settings(const wire::Context& context) {
  NamedSettings settings;
  for (const wire::SettingValue& value : context.settings) {
    const auto number = static_cast<size_t>(value.setting);
    settings[marshal::setting_table()[number - 1].name] = value.value;
  }
  return settings;
}

NamedSettings own_settings() {
  NamedSettings settings;
  const marshal::ContextValues now = marshal::read_context();
  for (const marshal::SettingAccess& access : marshal::setting_table())
    settings[access.name] = now[static_cast<size_t>(access.setting)];
  return settings;
}

}  // namespace torch_remote::client
