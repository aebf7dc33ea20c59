#pragma once

#include <cstdint>

#include <ATen/core/function_schema.h>

namespace torch_remote::marshal {

// How an argument is sent; decided once for each operator.
enum class ArgumentKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kInt,
  kFloat,
  kBool,
  kScalar,
  kIntList,
  kFloatList,
  kBoolList,
  kScalarList,
  kString,
  kDtype,
  kLayout,
  kMemoryFormat,
  kDevice,
  kGenerator,
  kComplex,
  kUnsupported,
};

struct ArgumentInfo {
  ArgumentKind kind = ArgumentKind::kUnsupported;
  bool is_written = false;   // an in-place or out= target, so never a CPU scalar
  bool is_constant = false;  // its value decides a shape: it belongs to the key and is not a slot
};

ArgumentInfo argument_info(const c10::Argument& argument, bool is_constant);

}  // namespace torch_remote::marshal
