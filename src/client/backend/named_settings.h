#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "client/session/session.h"

namespace torch_remote::client {

// Settings that change results, by name: of this process, and of a server (which waits). They are
// equal after every call. For tests and debugging.
using NamedSettings = std::map<std::string, int64_t>;

NamedSettings own_settings();
NamedSettings settings_of(Session& session);

}  // namespace torch_remote::client
