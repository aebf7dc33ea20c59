#pragma once

#include "base/networks.h"

namespace torch_remote::server {

// Note [Where a session connects to]
//
// With `serve --peers` a session connects to sessions of other servers: for links, and by the
// engines of process groups. The addresses come from its client, which may lie: the engines take
// them out of a store that the clients fill. So the server has a connect() of its own, which takes
// the place of the C library's for every library in the process. It refuses addresses outside the
// networks of --peers. This does not hold a session that was taken over, which can make the system
// call by itself; where that matters, a firewall must hold it.

// From now on. Once, before the session's first message.
void limit_connections(Networks networks);

}  // namespace torch_remote::server
