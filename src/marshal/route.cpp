#include "marshal/route.h"

#include <algorithm>

#include <ATen/core/enum_tag.h>

#include "marshal/schemas.h"

namespace torch_remote::marshal {
namespace {

using c10::DispatchKey;

bool has_kernel(const c10::OperatorHandle& operation, DispatchKey key) {
  return operation.hasKernelForDispatchKey(key);
}

// split_copy.Tensor_out and the like copy views into a list of the caller's tensors.
bool fills_a_list(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.is_out() && argument.type()->kind() == c10::TypeKind::ListType;
      });
}

// Sparse, nested and quantized tensors have dispatch keys and operators of their own.
bool mentions_another_layout(std::string_view name) {
  constexpr std::string_view kOtherLayouts[] = {"sparse",    "nested",    "_jagged",
                                                "quantized", "_coalesce", "mkldnn_reorder"};
  return std::any_of(std::begin(kOtherLayouts), std::end(kOtherLayouts),
                     [name](std::string_view part) { return name.find(part) != name.npos; });
}

// Has a kernel that makes its result as PyTorch's C++ shape code says.
bool is_structured(const c10::OperatorHandle& operation) {
  return has_kernel(operation, DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         has_kernel(operation, DispatchKey::CPU);
}

// mul.Scalar becomes mul.Tensor with the number in a tensor: still one call, and PyTorch's C++
// shape code tells its result.
bool becomes_another_overload(const c10::OperatorHandle& operation) {
  constexpr std::string_view kScalar = "Scalar";
  constexpr std::string_view kOut = "_out";
  const auto& [name, overload] = operation.operator_name();
  if (!overload.starts_with(kScalar) || has_kernel(operation, DispatchKey::CPU))
    return false;
  auto& dispatcher = c10::Dispatcher::singleton();
  std::string other = "Tensor" + overload.substr(kScalar.size());
  if (!dispatcher.findSchema({name, other}))
    return false;
  if (other.ends_with(kOut))  // the form that makes a new tensor says more about its kernel
    other.resize(other.size() - kOut.size());
  const auto functional = dispatcher.findSchema({name, other});
  return functional.has_value() && is_structured(*functional);
}

// Operators that PyTorch would decompose on the client although the server can run them whole.
bool travels_whole(const c10::OperatorHandle& operation) {
  const auto& schema = operation.schema();
  if (!schema.name().starts_with(kAten) || returns_view(schema) ||
      mentions_another_layout(schema.name()) || fills_a_list(schema) ||
      !mentions(schema.arguments(), "Tensor") || becomes_another_overload(operation))
    return false;
  // squeeze_, t_, … change metadata on the client only. squeeze_copy, … are a view and a clone,
  // unless there is a kernel for them.
  if (operation.hasTag(at::Tag::inplace_view))
    return false;
  if (operation.hasTag(at::Tag::view_copy) && !has_kernel(operation, DispatchKey::CPU))
    return false;
  // A few have a composed kernel beside that for CPU and CUDA, which the server runs.
  if (has_kernel(operation, DispatchKey::CompositeImplicitAutograd))
    return has_kernel(operation, DispatchKey::CPU);
  return !operation.hasTag(at::Tag::generated);
}

}  // namespace

Route route_of(const c10::OperatorHandle& operation, const OperatorRules& rules) {
  const Route given = rules.route;
  if (given == Route::kSent || given == Route::kBranch || given == Route::kReadsMemory)
    return given;
  if (given == Route::kRefused && mentions(operation.schema().returns(), "Tensor"))
    return given;
  const bool is_usual = given == Route::kUsual || given == Route::kRefused;
  if (is_usual && (!is_composed(operation) || travels_whole(operation)))
    return Route::kSent;
  const bool is_implicit = has_kernel(operation, DispatchKey::CompositeImplicitAutograd);
  if (!is_implicit && (returns_view(operation.schema()) || operation.hasTag(at::Tag::inplace_view)))
    return Route::kView;
  if (given == Route::kKernel)
    return given;
  return has_kernel(operation, DispatchKey::CompositeExplicitAutogradNonFunctional)
             ? Route::kStructured
             : Route::kComposed;
}

bool is_composed(const c10::OperatorHandle& operation) {
  return has_kernel(operation, DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         has_kernel(operation, DispatchKey::CompositeExplicitAutograd) ||
         has_kernel(operation, DispatchKey::CompositeImplicitAutograd);
}

bool returns_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool mentions(const std::vector<c10::Argument>& arguments, std::string_view type) {
  return std::any_of(arguments.begin(), arguments.end(), [type](const c10::Argument& argument) {
    return argument.type()->str().find(type) != std::string::npos;
  });
}

}  // namespace torch_remote::marshal
