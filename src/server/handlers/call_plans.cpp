#include "server/handlers/call_plans.h"

#include <string>

#include "wire/limits.h"

namespace torch_remote::server {
namespace {

uint64_t introduction_bytes(const wire::Introduction& introduction) {
  uint64_t bytes = introduction.name.size() + introduction.overload.size();
  for (const std::string& argument : introduction.arguments)
    bytes += argument.size() + sizeof(argument);
  return bytes;
}

}  // namespace

void CallPlans::introduce(wire::Introduction introduction) {
  introduced_bytes_ += introduction_bytes(introduction);  // stays with the operator
  Operator found = table_.find(std::move(introduction));
  introduced_bytes_ += sizeof(found) + found.callee.refusal.size();
  if (call_log_ != nullptr)
    found.time_row = call_log_->add_operator(found.name);
  operators_.push_back(std::make_unique<const Operator>(std::move(found)));
}

void CallPlans::add(wire::Signature signature, uint64_t encoded) {
  if (signature.introduction)
    introduce(std::move(*signature.introduction));
  const Operator& operation = *operators_.at(signature.operator_id);
  auto call = std::make_shared<CallPlan>();
  call->operation = &operation;
  call->index = signature.index;
  call->plan = marshal::make_plan(signature, operation.callee, devices_.device(signature.device));
  call->bytes = marshal::memory_of(call->plan, encoded);
  if (signature.index >= plans_.size())
    plans_.resize(signature.index + 1);
  *plan_bytes_ += call->bytes;
  call->counted = plan_bytes_;
  plans_[signature.index] = std::move(call);
  wire::check_limit("bytes of signatures", introduced_bytes_ + *plan_bytes_, kMaxSignatureMemory);
}

}  // namespace torch_remote::server
