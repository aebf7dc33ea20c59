#include "marshal/argument.h"

#include <ATen/core/jit_type.h>

namespace torch_remote::marshal {
namespace {

ArgumentKind element_kind(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensorList;
    case c10::TypeKind::OptionalType:
      return element_kind(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ArgumentKind::kIntList;
    case c10::TypeKind::FloatType:
      return ArgumentKind::kFloatList;
    case c10::TypeKind::BoolType:
      return ArgumentKind::kBoolList;
    case c10::TypeKind::NumberType:
      return ArgumentKind::kScalarList;
    default:
      return ArgumentKind::kUnsupported;
  }
}

ArgumentKind kind_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return kind_of(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::ListType:
      return element_kind(type->castRaw<c10::ListType>()->getElementType());
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ArgumentKind::kInt;
    case c10::TypeKind::FloatType:
      return ArgumentKind::kFloat;
    case c10::TypeKind::BoolType:
      return ArgumentKind::kBool;
    case c10::TypeKind::NumberType:
      return ArgumentKind::kScalar;
    case c10::TypeKind::StringType:
      return ArgumentKind::kString;
    case c10::TypeKind::ScalarTypeType:
      return ArgumentKind::kDtype;
    case c10::TypeKind::LayoutType:
      return ArgumentKind::kLayout;
    case c10::TypeKind::MemoryFormatType:
      return ArgumentKind::kMemoryFormat;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::kDevice;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case c10::TypeKind::ComplexType:
      return ArgumentKind::kComplex;
    default:
      return ArgumentKind::kUnsupported;
  }
}

}  // namespace

ArgumentInfo argument_info(const c10::Argument& argument, bool is_constant) {
  // real_type() tells dtype, layout and memory format from plain integers; type() does not.
  const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  return {kind_of(argument.real_type()), is_written, is_constant};
}

}  // namespace torch_remote::marshal
