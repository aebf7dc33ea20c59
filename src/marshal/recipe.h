#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/jit_type_base.h>
#include <c10/core/Device.h>

#include "marshal/plan.h"
#include "wire/signature.h"

namespace torch_remote::marshal {

// Why a signature cannot be called here; caught by make_plan.
struct Refusal {
  std::string text;
};

// The next free place of each kind in `Slots`.
struct Cursor {
  uint32_t tensor = 0;
  uint32_t number = 0;
  uint32_t generator = 0;
};

// How a value of the client's becomes an argument of this type; its slots begin at `cursor`. Throws
// Refusal for a value that the type cannot have.
Recipe make_recipe(const c10::Type& type, const wire::Value& value, Cursor cursor,
                   c10::Device device);

}  // namespace torch_remote::marshal
