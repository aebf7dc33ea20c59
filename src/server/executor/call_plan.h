#pragma once

#include <cstdint>
#include <memory>

#include "marshal/plan.h"
#include "server/operators/operators.h"

namespace torch_remote::server {

// What the calls of one signature have in common. Immutable. Its memory counts as long as the table
// of plans or a program holds it.
struct CallPlan {
  CallPlan() = default;

  ~CallPlan() {
    if (counted != nullptr)
      *counted -= bytes;
  }

  CallPlan(const CallPlan&) = delete;
  CallPlan& operator=(const CallPlan&) = delete;

  marshal::Plan plan;
  const Operator* operation = nullptr;  // lives as long as the session
  uint64_t index = 0;                   // the client's number for the signature
  uint64_t bytes = 0;                   // about how much memory this takes
  std::shared_ptr<uint64_t> counted;    // of all plans, with those bytes; null: is not counted
};

}  // namespace torch_remote::server
