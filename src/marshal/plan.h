#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/function_schema.h>
#include <c10/core/Device.h>

#include "marshal/recipe.h"
#include "wire/signature.h"

namespace torch_remote::marshal {

// How to read the slots of a call, in the client's order. Needs no schema, so that the slots of a
// refused call can be skipped.
enum class SlotKind : uint8_t {
  kStorage,  // a storage's first mention: name and offset
  kOffset,   // a storage mentioned before
  kInt,
  kUnsigned,
  kFloat,
  kComplex,
  kBool,
  kRaw,         // `count` bytes of a 0-dim tensor
  kFloatList,   // `count` numbers
  kScalarList,  // the kinds are scalar_kinds[first … first + count)
  kGenerator,
};

struct SlotStep {
  SlotKind kind = SlotKind::kStorage;
  uint32_t count = 0;
  uint32_t first = 0;
};

// What is worked out once for each signature, when SIGNATURE arrives. Immutable.
struct Plan {
  std::vector<SlotStep> steps;
  std::vector<wire::ValueKind> scalar_kinds;
  std::vector<TensorRecipe> tensors;
  std::vector<SparseRecipe> sparse;
  std::vector<wire::FreshStorage> storages;
  std::vector<Recipe> arguments;  // one for each argument of the server's schema
  std::vector<wire::Output> outputs;
  bool outputs_known = false;
  uint32_t fresh_outputs = 0;
  uint8_t device = 0;
  bool grad_mode = false;
  bool takes_no_generator = false;  // a Generator argument is None, so the default one is used
  std::string refusal;              // not empty: why it cannot be called; then `arguments` is empty
};

// The operator of a signature.
struct Callee {
  const c10::FunctionSchema* schema = nullptr;  // null: it cannot be called
  // Where set, only arguments in both schemas are known (a server that imitates another version).
  const c10::FunctionSchema* claimed = nullptr;
  std::string refusal;                 // why it cannot be called
  std::vector<std::string> arguments;  // the client's names for the arguments
  bool overwrites_self = false;        // copy_, fill_, normal_ …: self's old value is not read
};

// Whether the server's operator has an argument of that name.
bool knows(const Callee& callee, const std::string& argument);

// Matches arguments by name, because client and server may have different versions of torch. Throws
// ProtocolError on what our client never sends.
Plan make_plan(const wire::Signature& signature, const Callee& callee, c10::Device device);

// About how many bytes the plan of a SIGNATURE of `encoded` bytes takes, rather too many.
uint64_t memory_of(const Plan& plan, uint64_t encoded);

}  // namespace torch_remote::marshal
