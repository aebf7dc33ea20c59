#include "server/executor/context.h"

#include <stdexcept>

#include "base/log.h"
#include "marshal/context.h"

namespace torch_remote::server {
namespace {

// Skips values that are already set: some setters warn, and some do not exist in every build.
void apply(const wire::SettingValue& setting) {
  at::Context& context = at::globalContext();
  const marshal::SettingAccess& access =
      marshal::setting_table()[static_cast<size_t>(setting.setting) - 1];
  try {
    if (access.read(context) == setting.value)
      return;
    if (setting.value < access.lowest || setting.value > access.highest)
      throw std::invalid_argument("the value is out of range");
    access.write(context, static_cast<int32_t>(setting.value));
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "a setting is not available here",
        {{"setting", access.name},
         {"value", setting.value},
         {"reason", std::string_view(error.what()).substr(0, 200)}});
  }
}

}  // namespace

void apply_context(const wire::Context& context) {
  for (const wire::SettingValue& setting : context.settings)
    apply(setting);
}

wire::Context present_context() {
  wire::Context context;
  const marshal::ContextValues values = marshal::read_context();
  for (const marshal::SettingAccess& access : marshal::setting_table())
    context.settings.push_back({access.setting, values[static_cast<size_t>(access.setting)]});
  return context;
}

}  // namespace torch_remote::server
