#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include "wire/signature.h"

namespace torch_remote::marshal {

// One tensor that a call mentions, without its storage and offset. Immutable.
struct TensorRecipe {
  at::ScalarType dtype = at::kFloat;
  bool conj = false;
  bool neg = false;
  bool wrapped = false;
  bool is_repeat = false;    // an earlier tensor of the call has the same storage
  bool is_dense = false;     // its elements fill [offset, offset + extent) without gap or overlap
  bool is_read = true;       // false: the operator overwrites all of it without reading
  bool is_written = false;   // by the operator's schema
  bool may_change = false;   // written, also where the schema does not say so
  bool is_argument = false;  // not only a part of a sparse tensor
  uint32_t storage = 0;      // which storage of the call
  uint64_t extent = 0;       // bytes needed after the offset; 0 without elements
  c10::DimVector sizes;
  c10::DimVector strides;
};

// Throws ProtocolError for flags that the dtype or the shape cannot have.
TensorRecipe make_tensor_recipe(const wire::TensorSpec& spec);

// One sparse tensor that a call mentions. Immutable.
struct SparseRecipe {
  wire::SparseSpec spec;
  std::vector<uint32_t> parts;  // tensors of the call
  bool is_written = false;      // by the operator's schema
};

// How one argument of the server's schema is made. Indices are into `Slots` (marshal/decode.h).
enum class RecipeKind : uint8_t {
  kConstant,
  kTensor,
  kSparse,
  kScalarTensor,
  kTensorList,
  kOptionalTensorList,
  kInt,
  kUnsigned,
  kFloat,
  kComplex,
  kBool,
  kFloatList,
  kScalarList,
  kGenerator,
};

struct Recipe {
  RecipeKind kind = RecipeKind::kConstant;
  bool wrapped = false;                // kScalarTensor
  bool is_last_use = true;             // kTensor: no later argument is the same tensor
  at::ScalarType dtype = at::kFloat;   // kScalarTensor
  uint32_t index = 0;                  // tensor, sparse tensor, number or generator
  std::vector<wire::ValueKind> kinds;  // kScalarList
  uint32_t count = 0;                  // kFloatList
  c10::IValue constant;
  std::vector<Recipe> items;  // tensor lists
};

// Thrown when a signature cannot be called here; make_plan() catches it.
struct Refusal {
  std::string text;
};

// The next free index of each kind in `Slots`.
struct Cursor {
  uint32_t tensor = 0;
  uint32_t sparse = 0;
  uint32_t number = 0;
  uint32_t generator = 0;
};

// How a client's value becomes an argument of this type; its slots begin at `cursor`. Throws
// Refusal when the types do not match.
Recipe make_recipe(const c10::Type& type, const wire::Value& value, Cursor cursor,
                   c10::Device device);

}  // namespace torch_remote::marshal
