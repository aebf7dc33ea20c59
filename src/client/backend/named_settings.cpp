#include "client/backend/named_settings.h"

#include "marshal/context.h"

namespace torch_remote::client {

NamedSettings own_settings() {
  NamedSettings settings;
  const marshal::ContextValues now = marshal::read_context();
  for (const marshal::SettingAccess& access : marshal::setting_table())
    settings[access.name] = now[static_cast<size_t>(access.setting)];
  return settings;
}

NamedSettings settings_of(Session& session) {
  NamedSettings settings;
  for (const wire::SettingValue& value : server_context(session).settings) {
    const auto number = static_cast<size_t>(value.setting);
    settings[marshal::setting_table()[number - 1].name] = value.value;
  }
  return settings;
}

}  // namespace torch_remote::client
