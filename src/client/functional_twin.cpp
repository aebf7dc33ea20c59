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

void write(const at::Tensor& out, const at::Tensor& result) {
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

// Into a tensor, or into a list of them.
void write(const OperatorInfo& info, const c10::IValue& out, const c10::IValue& result) {
  if (out.isTensor()) {
    write(out.toTensor(), result.toTensor());
    return;
  }
  const auto outs = out.toListRef();
  const auto results = result.toListRef();
  TORCH_CHECK(outs.size() == results.size(), info.name, "() expected an out= argument of size ",
              results.size(), ", got size ", outs.size());
  for (size_t i = 0; i < outs.size(); ++i)
    write(outs[i].toTensor(), results[i].toTensor());
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
  const size_t count = info.out_arguments.size();
  const std::vector<c10::IValue> outs = torch::jit::last(*stack, count).vec();
  torch::jit::drop(*stack, count);
  twin->handle.callBoxed(*stack);
  const std::vector<c10::IValue> results = torch::jit::last(*stack, count).vec();
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < count; ++i)
    write(info, outs[i], results[i]);
  if (!info.returns.empty())  // split_with_sizes_copy.out returns nothing
    stack->insert(stack->end(), outs.begin(), outs.end());
}

}  // namespace torch_remote::client
