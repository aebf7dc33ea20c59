#pragma once

#include "wire/handshake.h"

namespace torch_remote::wire {

// agree(), for this end of a connection. Its ProtocolError is for the user of either end: it gives
// the versions of both, and says which end to upgrade.
Version agree_as(Side us, Version peer_min, Version peer_max);

}  // namespace torch_remote::wire
