#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "server/device/devices.h"
#include "server/executor/call_log.h"
#include "server/executor/execute.h"
#include "server/operators/operators.h"
#include "wire/signature.h"

namespace torch_remote::server {

// Limit for the memory of a session's signatures, in the server's form, and introductions. A client
// gives up signatures before it gets there (client/session/signature_table.h).
constexpr uint64_t kMaxSignatureMemory = uint64_t{2} << 30;

// What the signatures of a session have become, by index, and the operators that they call.
// Confined to the executor thread.
class CallPlans {
 public:
  // `call_log` may be null.
  CallPlans(const Devices& devices, const OperatorTable& table, CallLog* call_log)
      : devices_(devices), table_(table), call_log_(call_log) {}

  // How many operators the client has introduced, which a SIGNATURE may name.
  uint32_t operators() const { return static_cast<uint32_t>(operators_.size()); }

  // Replaces the plan at that index. `encoded`: the signature's bytes.
  void add(wire::Signature signature, uint64_t encoded);

  const CallPlan& find(uint64_t index) const {
    if (index >= plans_.size() || plans_[index] == nullptr) [[unlikely]]
      throw ProtocolError("a call uses a signature that was never sent");
    return *plans_[index];
  }

  // For a program, which may call it when another plan is at the index.
  std::shared_ptr<const CallPlan> shared(uint64_t index) const {
    find(index);
    return plans_[index];
  }

 private:
  void introduce(wire::Introduction introduction);

  const Devices& devices_;
  const OperatorTable& table_;
  CallLog* const call_log_;
  std::vector<std::unique_ptr<const Operator>> operators_;  // by the client's numbers
  std::vector<std::shared_ptr<const CallPlan>> plans_;      // by index
  uint64_t introduced_bytes_ = 0;                           // of operators_
  const std::shared_ptr<uint64_t> plan_bytes_ = std::make_shared<uint64_t>(0);
};

}  // namespace torch_remote::server
