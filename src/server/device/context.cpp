#include "server/device/context.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "base/log.h"
#include "marshal/context.h"

namespace torch_remote::server {
namespace {

constexpr int kLeastMostThreads = 16;

// The value that is set, in place of the client's.
int64_t limited(const wire::SettingValue& setting) {
  if (setting.setting != wire::Setting::kThreads || setting.value <= most_threads())
    return setting.value;
  static std::atomic<bool> was_told{false};
  if (!was_told.exchange(true))
    log(LogLevel::kWarning, "the client's number of threads is limited",
        {{"wanted", setting.value}, {"threads", most_threads()}});
  return most_threads();
}

// Skips values that are already set: some setters warn, and some do not exist in every build.
void apply(const wire::SettingValue& setting) {
  at::Context& context = at::globalContext();
  const marshal::SettingAccess& access =
      marshal::setting_table()[static_cast<size_t>(setting.setting) - 1];
  const int64_t value = limited(setting);
  try {
    if (access.read(context) == value)
      return;
    if (value < access.lowest || value > access.highest)
      throw std::invalid_argument("the value is out of range");
    access.write(context, static_cast<int32_t>(value));
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "a setting is not available here",
        {{"setting", access.name},
         {"value", setting.value},
         {"reason", std::string_view(error.what()).substr(0, 200)}});
  }
}

}  // namespace

int most_threads() {
  const auto& highest = marshal::setting_table()[static_cast<size_t>(wire::Setting::kThreads) - 1];
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(2 * cores, kLeastMostThreads, highest.highest);
}

// What setters warn of, they warn the client of too.
void apply_context(const wire::Context& context) {
  c10::WarningHandler standard_error;
  const c10::WarningUtils::WarningHandlerGuard guard(&standard_error);
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
