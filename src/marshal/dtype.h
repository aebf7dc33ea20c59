#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "wire/spec.h"

namespace torch_remote::marshal {

// nullopt: a dtype that cannot be sent (quantized, bits, sub-byte integers).
std::optional<wire::Dtype> to_wire(at::ScalarType type);
at::ScalarType from_wire(wire::Dtype dtype);

uint8_t to_wire(at::MemoryFormat format);
at::MemoryFormat memory_format_from_wire(int64_t value);

// The metadata of a strided tensor.
wire::TensorSpec spec_of(const at::Tensor& tensor);

}  // namespace torch_remote::marshal
