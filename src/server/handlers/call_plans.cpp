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
  bytes_ += introduction_bytes(introduction);  // stays with the operator
  Operator found = table_.find(std::move(introduction));
  bytes_ += sizeof(found) + found.callee.refusal.size();
  if (call_log_ != nullptr)
    found.place = call_log_->add_operator(found.name);
  operators_.push_back(std::make_unique<const Operator>(std::move(found)));
}

void CallPlans::add(wire::Signature signature, uint64_t encoded) {
  if (signature.introduction)
    introduce(std::move(*signature.introduction));
  const Operator& operation = *operators_.at(signature.operator_id);
  auto call = std::make_unique<CallPlan>();
  call->operation = &operation;
  call->slot = signature.slot;
  call->plan = marshal::make_plan(signature, operation.callee, devices_.device(signature.device));
  call->bytes = marshal::memory_of(call->plan, encoded);
  if (signature.slot >= plans_.size())
    plans_.resize(signature.slot + 1);
  std::unique_ptr<const CallPlan>& place = plans_[signature.slot];
  bytes_ += call->bytes - (place == nullptr ? 0 : place->bytes);
  wire::check_limit("bytes of signatures", bytes_, kMaxSignatureMemory);
  place = std::move(call);
}

}  // namespace torch_remote::server
