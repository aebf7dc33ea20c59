#include "client/functional_twin.h"

#include <optional>
#include <unordered_map>

#include <ATen/native/Resize.h>

#include "base/mutex.h"

namespace torch_remote::client {
namespace {

bool is_twin(const c10::FunctionSchema& out, size_t inputs, const c10::FunctionSchema& candidate) {
  if (candidate.arguments().size() != inputs || candidate.is_mutable())
    return false;
  for (size_t i = 0; i < inputs; ++i) {
    if (candidate.arguments()[i].name() != out.arguments()[i].name())
      return false;
    if (*candidate.arguments()[i].type() != *out.arguments()[i].type())
      return false;
  }
  return true;
}

std::optional<c10::OperatorHandle> search_twin(const OperatorInfo& info) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const c10::FunctionSchema& schema = info.handle.schema();
  const size_t inputs = schema.arguments().size() - info.out_arguments.size();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name != schema.name())
      continue;
    auto candidate = dispatcher.findSchema(name);
    if (candidate.has_value() && is_twin(schema, inputs, candidate->schema()))
      return candidate;
  }
  return std::nullopt;
}

}  // namespace

const OperatorInfo* functional_twin(const OperatorInfo& info) {
  static auto* mutex = new Mutex;
  static auto* known = new std::unordered_map<const OperatorInfo*, const OperatorInfo*>;
  {
    MutexLock lock(*mutex);
    const auto found = known->find(&info);
    if (found != known->end())
      return found->second;
  }
  const auto twin = search_twin(info);
  const OperatorInfo* result = twin.has_value() ? &operator_info(*twin) : nullptr;
  MutexLock lock(*mutex);
  return known->emplace(&info, result).first->second;
}

void call_functional_twin(const OperatorInfo& info, torch::jit::Stack* stack) {
  const OperatorInfo* twin = functional_twin(info);
  TORCH_CHECK_NOT_IMPLEMENTED(
      twin != nullptr, info.name,
      " with out= is not supported on a remote device: use the form without out=");
  const size_t outs = info.out_arguments.size();
  std::vector<at::Tensor> out_tensors;
  for (size_t i = stack->size() - outs; i < stack->size(); ++i)
    out_tensors.push_back((*stack)[i].toTensor());
  torch::jit::drop(*stack, outs);
  twin->handle.callBoxed(*stack);
  std::vector<at::Tensor> results;
  for (size_t i = stack->size() - outs; i < stack->size(); ++i)
    results.push_back((*stack)[i].toTensor());
  torch::jit::drop(*stack, outs);
  for (size_t i = 0; i < outs; ++i) {
    at::native::resize_output(out_tensors[i], results[i].sizes());
    out_tensors[i].copy_(results[i]);
    stack->push_back(out_tensors[i]);
  }
}

}  // namespace torch_remote::client
