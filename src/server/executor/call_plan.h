#pragma once

#include <cstdint>

#include "marshal/plan.h"
#include "server/operators/operators.h"

namespace torch_remote::server {

// What the calls of one signature have in common. Immutable.
struct CallPlan {
  marshal::Plan plan;
  const Operator* operation = nullptr;  // lives as long as the session
  uint64_t slot = 0;                    // the client's number for the signature
  uint64_t bytes = 0;                   // about how much memory this takes
};

}  // namespace torch_remote::server
