#include "stub_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "marshal/sparse.h"

namespace torch_remote::fuzz {
namespace {

constexpr auto kStubKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr uint64_t kMostElements = 4096;  // that a real kernel is let to touch

std::vector<std::byte> choices;
size_t choice_count = 0;
Observer observer = nullptr;  // nullptr: stubs run

enum class Choice : uint8_t {
  kFitting = 0,  // 0 … 7: as the first tensor argument
  kOther = 8,
  kUndefined = 9,
  kArgument = 10,
  kView = 11,
  kResize = 12,
  kIndexError = 13,
  kOutOfMemory = 14,
  kDeviceFault = 15,
};

Choice next_choice() {
  if (choices.empty())
    return Choice::kFitting;
  const auto byte = static_cast<uint8_t>(choices[choice_count++ % choices.size()]);
  return byte % 16 < 8 ? Choice::kFitting : static_cast<Choice>(byte % 16);
}

// Operators that the server itself calls, in storage_table.cpp, outputs.cpp, sparse.cpp, reply.cpp.
bool is_own(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "aten::copy_", "aten::empty_strided", "aten::contiguous", "aten::resolve_conj",
      "aten::resolve_neg",
      // for sparse tensors: their parts, and the checks of indices
      "aten::empty", "aten::_validate_sparse_coo_tensor_args",
      "aten::_validate_sparse_compressed_tensor_args", "aten::to", "aten::lt", "aten::gt",
      "aten::ge", "aten::ne", "aten::logical_or", "aten::any", "aten::select", "aten::diff",
      "aten::item"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool is_large(const at::Tensor& tensor) {
  return tensor.defined() && static_cast<uint64_t>(tensor.numel()) > kMostElements;
}

// The elements that a view reaches are inside its storage; that is what the server has promised.
void touch(const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined())
    return;
  if (marshal::is_sparse(*tensor.unsafeGetTensorImpl())) {
    for (const at::Tensor& part : marshal::parts_of(tensor))
      touch(part, is_written);
    return;
  }
  if (tensor.numel() == 0)
    return;
  uint64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    last += static_cast<uint64_t>(tensor.size(i) - 1) * static_cast<uint64_t>(tensor.stride(i));
  const uint64_t begin = static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize();
  const uint64_t end = begin + (last + 1) * tensor.itemsize();
  if (end > tensor.storage().nbytes()) {
    std::cerr << "a kernel is given a view that ends at byte " << end << " of "
              << tensor.storage().nbytes() << '\n';
    std::abort();
  }
  auto* const bytes = static_cast<volatile char*>(tensor.storage().mutable_data());
  const char first_byte = bytes[begin];
  const char last_byte = bytes[end - 1];
  if (!is_written)
    return;
  bytes[begin] = static_cast<char>(first_byte + 1);
  bytes[end - 1] = static_cast<char>(last_byte + 1);
}

void touch(const c10::IValue& value, bool is_written) {
  if (value.isTensor())
    return touch(value.toTensor(), is_written);
  if (!value.isList())
    return;
  for (const c10::IValue& item : value.toListRef())
    touch(item, is_written);
}

at::Tensor like(const at::Tensor& tensor) {
  if (!tensor.defined() || is_large(tensor))
    return at::detail::empty_cpu({2}, at::kFloat, false, std::nullopt);
  return at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type(), false, std::nullopt);
}

// What a call gives back.
class Results {
 public:
  Results(const c10::OperatorHandle& operation, const torch::jit::Stack& arguments, Choice choice)
      : schema_(operation.schema()), arguments_(arguments), choice_(choice) {
    for (const c10::IValue& value : arguments)
      if (value.isTensor() && !first_.defined())
        first_ = value.toTensor();
  }

  torch::jit::Stack make() {
    torch::jit::Stack results;
    for (const c10::Argument& result : schema_.returns())
      results.push_back(make(result));
    return results;
  }

 private:
  c10::IValue make(const c10::Argument& result) {
    if (result.alias_info() != nullptr && result.alias_info()->isWrite())
      return written_argument();
    return make(*result.type());
  }

  // An operator in place, or one with `out`, gives back what it wrote.
  c10::IValue written_argument() {
    for (; next_argument_ < arguments_.size(); ++next_argument_) {
      const c10::AliasInfo* const alias = schema_.arguments()[next_argument_].alias_info();
      if (alias != nullptr && alias->isWrite())
        return arguments_[next_argument_++];
    }
    return at::Tensor();
  }

  c10::IValue make(const c10::Type& type) {
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        return tensor();
      case c10::TypeKind::ListType:
        return list(*type.castRaw<c10::ListType>()->getElementType());
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return int64_t{3};
      case c10::TypeKind::FloatType:
      case c10::TypeKind::NumberType:
        return 0.5;
      case c10::TypeKind::BoolType:
        return true;
      case c10::TypeKind::StringType:
        return "text";
      default:
        return {};
    }
  }

  c10::IValue list(const c10::Type& element) {
    if (element.kind() == c10::TypeKind::IntType)
      return c10::List<int64_t>({1, 2});
    if (element.kind() != c10::TypeKind::TensorType)
      return {};
    c10::List<at::Tensor> tensors;
    for (int i = 0; i < 2; ++i)
      tensors.push_back(tensor());
    return tensors;
  }

  at::Tensor tensor() {
    switch (choice_) {
      case Choice::kOther:
        return at::detail::empty_cpu({3, 2}, at::kDouble, false, std::nullopt);
      case Choice::kUndefined:
        return {};
      case Choice::kArgument:
        return first_;
      case Choice::kView:
        return first_.defined() ? first_.alias() : first_;
      default:
        return like(first_);
    }
  }

  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& arguments_;
  const Choice choice_;
  at::Tensor first_;
  size_t next_argument_ = 0;
};

void resize_written(const c10::FunctionSchema& schema, torch::jit::Stack& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && arguments[i].isTensor() &&
        arguments[i].toTensor().defined())
      arguments[i].toTensor().resize_({5, 7});
  }
}

void fail_as(Choice choice) {
  TORCH_CHECK_INDEX(choice != Choice::kIndexError, "index 9 is out of range");
  TORCH_CHECK_WITH(OutOfMemoryError, choice != Choice::kOutOfMemory, "out of memory");
  if (choice == Choice::kDeviceFault)
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 710,
                                "device-side assert triggered");
}

// As the sizes of a new tensor.
bool is_large(c10::IntArrayRef sizes) {
  return std::any_of(sizes.begin(), sizes.end(),
                     [](int64_t size) { return static_cast<uint64_t>(size) > 8; }) ||
         sizes.size() > 4;
}

void run_own(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const bool is_empty = operation.schema().name() == "aten::empty";
  for (const c10::IValue& value : *stack) {
    TORCH_CHECK(!value.isTensor() || !is_large(value.toTensor()), "too large for a fuzzer");
    TORCH_CHECK(!is_empty || !value.isIntList() || !is_large(value.toIntVector()),
                "too large for a fuzzer");
  }
  operation.callBoxed(stack);
}

void run_observed(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  struct Told {
    ~Told() { observer(nullptr); }
  } const after;

  observer(c10::toString(operation.operator_name()).c_str());
  operation.callBoxed(stack);
}

void run_stub(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without_stub(kStubKey);
  if (observer != nullptr)
    return run_observed(operation, stack);
  const c10::FunctionSchema& schema = operation.schema();
  if (is_own(schema.name()))
    return run_own(operation, stack);
  torch::jit::Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    touch(arguments[i], alias != nullptr && alias->isWrite());
  }
  const Choice choice = next_choice();
  fail_as(choice);
  if (choice == Choice::kResize)
    resize_written(schema, arguments);
  for (c10::IValue& result : Results(operation, arguments, choice).make())
    stack->push_back(std::move(result));
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_stub>());
}

}  // namespace

void set_stub_choices(std::span<const std::byte> list) {
  choices.assign(list.begin(), list.end());
  choice_count = 0;
}

void use_stub_kernels() {
  c10::impl::tls_set_dispatch_key_included(kStubKey, true);
}

void use_real_kernels(Observer told) {
  observer = told;
  use_stub_kernels();
}

}  // namespace torch_remote::fuzz
