#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "client/session/session.h"

namespace torch_remote::client {

// Settings that change results, by name: those of this process, and those in force on a server (waits). They
// are equal behind every call; for tests and for people who wonder.
using NamedSettings = std::map<std::string, int64_t>;

NamedSettings own_settings();
NamedSettings settings_of(Session& session);

}  // namespace torch_remote::client
