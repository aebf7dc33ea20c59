#include "marshal/dtype.h"

#include <array>

#include "base/error.h"

namespace torch_remote::marshal {
namespace {

constexpr std::array<at::ScalarType, wire::kDtypeCount> kTypes = {
    at::kByte,
    at::kChar,
    at::kShort,
    at::kInt,
    at::kLong,
    at::kHalf,
    at::kFloat,
    at::kDouble,
    at::kComplexHalf,
    at::kComplexFloat,
    at::kComplexDouble,
    at::kBool,
    at::kBFloat16,
    at::kUInt16,
    at::kUInt32,
    at::kUInt64,
    at::kFloat8_e5m2,
    at::kFloat8_e4m3fn,
    at::kFloat8_e5m2fnuz,
    at::kFloat8_e4m3fnuz,
    at::kFloat8_e8m0fnu,
    at::ScalarType::Float4_e2m1fn_x2,
};

constexpr size_t kScalarTypes = static_cast<size_t>(at::ScalarType::NumOptions) + 1;

constexpr std::array<uint8_t, kScalarTypes> reverse_table() {
  std::array<uint8_t, kScalarTypes> table{};
  for (auto& entry : table)
    entry = 0xff;
  for (uint8_t i = 0; i < wire::kDtypeCount; ++i)
    table[static_cast<size_t>(kTypes[i])] = i;
  return table;
}

constexpr auto kReverse = reverse_table();

}  // namespace

std::optional<wire::Dtype> to_wire(at::ScalarType type) {
  const uint8_t code = kReverse[static_cast<size_t>(type)];
  if (code == 0xff)
    return std::nullopt;
  return static_cast<wire::Dtype>(code);
}

at::ScalarType from_wire(wire::Dtype dtype) {
  return kTypes[static_cast<uint8_t>(dtype)];
}

uint8_t to_wire(at::MemoryFormat format) {
  switch (format) {
    case at::MemoryFormat::Contiguous:
      return 0;
    case at::MemoryFormat::Preserve:
      return 1;
    case at::MemoryFormat::ChannelsLast:
      return 2;
    case at::MemoryFormat::ChannelsLast3d:
      return 3;
    default:
      throw InternalError("a memory format that cannot be sent");
  }
}

at::MemoryFormat memory_format_from_wire(int64_t value) {
  switch (value) {
    case 0:
      return at::MemoryFormat::Contiguous;
    case 1:
      return at::MemoryFormat::Preserve;
    case 2:
      return at::MemoryFormat::ChannelsLast;
    case 3:
      return at::MemoryFormat::ChannelsLast3d;
    default:
      throw ProtocolError("no such memory format");
  }
}

wire::TensorSpec spec_of(const at::Tensor& tensor) {
  wire::TensorSpec spec;
  const auto dtype = to_wire(tensor.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(dtype, "tensors of dtype ", tensor.scalar_type(),
                              " are not supported on a remote device");
  spec.dtype = *dtype;
  spec.conj = tensor.is_conj();
  spec.neg = tensor.is_neg();
  spec.wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  spec.sizes = tensor.sizes().vec();
  spec.strides = tensor.strides().vec();
  return spec;
}

}  // namespace torch_remote::marshal
