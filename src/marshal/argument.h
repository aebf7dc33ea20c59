#pragma once

#include <cstdint>

#include <ATen/core/function_schema.h>

namespace torch_remote::marshal {

// How a schema's argument travels, worked out once for each operator.
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
  bool is_written = false;   // an in-place or out= target: never a number from the host
  bool is_constant = false;  // its value decides a shape: part of the key, not a slot
};

ArgumentInfo argument_info(const c10::Argument& argument, bool is_constant);

}  // namespace torch_remote::marshal
