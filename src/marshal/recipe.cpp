#include "marshal/recipe.h"

#include <algorithm>
#include <utility>

#include <ATen/core/jit_type.h>

#include "base/error.h"
#include "marshal/dtype.h"
#include "marshal/sparse.h"

namespace torch_remote::marshal {

using wire::Value;
using wire::ValueKind;

namespace {

Recipe constant(c10::IValue value) {
  Recipe recipe;
  recipe.constant = std::move(value);
  return recipe;
}

Recipe slot(RecipeKind kind, uint32_t index) {
  Recipe recipe;
  recipe.kind = kind;
  recipe.index = index;
  return recipe;
}

[[noreturn]] void refuse_type(const c10::Type& type) {
  throw Refusal{"needs a value of type " + type.str() + ", but the client sent another type"};
}

Recipe tensor_recipe(const c10::Type& type, const Value& value, Cursor& cursor) {
  switch (value.kind) {
    case ValueKind::kTensor:
      return slot(RecipeKind::kTensor, cursor.tensor++);
    case ValueKind::kAgain:
      return slot(RecipeKind::kTensor, static_cast<uint32_t>(value.integer));
    case ValueKind::kSparse:
      for (const Value& part : value.items)
        cursor.tensor += part.kind == ValueKind::kTensor ? 1 : 0;
      return slot(RecipeKind::kSparse, cursor.sparse++);
    case ValueKind::kSparseAgain:
      return slot(RecipeKind::kSparse, static_cast<uint32_t>(value.integer));
    case ValueKind::kUndefined:
      return constant(at::Tensor());
    case ValueKind::kScalarTensor: {
      Recipe recipe = slot(RecipeKind::kScalarTensor, cursor.number++);
      recipe.wrapped = value.spec.wrapped;
      recipe.dtype = from_wire(value.spec.dtype);
      return recipe;
    }
    default:
      refuse_type(type);
  }
}

Recipe number_recipe(const c10::Type& type, const Value& value, Cursor& cursor) {
  switch (value.kind) {
    case ValueKind::kScalarInt:
      return slot(RecipeKind::kInt, cursor.number);
    case ValueKind::kScalarUnsigned:
      return slot(RecipeKind::kUnsigned, cursor.number);
    case ValueKind::kScalarFloat:
      return slot(RecipeKind::kFloat, cursor.number);
    case ValueKind::kScalarComplex:
      return slot(RecipeKind::kComplex, cursor.number);
    case ValueKind::kScalarBool:
      return slot(RecipeKind::kBool, cursor.number);
    case ValueKind::kConstScalarInt:
      return constant(value.integer);
    case ValueKind::kConstScalarFloat:
      return constant(value.real);
    default:
      refuse_type(type);
  }
}

// dtype, layout and memory format are integers on the stack, which kernels use as an index without
// a check. So each is accepted only where the schema has that type.
Recipe int_recipe(const c10::Type& type, const Value& value) {
  switch (type.kind()) {
    case c10::TypeKind::ScalarTypeType:
      if (value.kind == ValueKind::kDtype)
        return constant(from_wire(wire::checked_dtype(static_cast<uint8_t>(value.integer))));
      break;
    case c10::TypeKind::LayoutType:
      if (value.kind == ValueKind::kLayout)
        return constant(from_wire(wire::checked_layout(static_cast<uint8_t>(value.integer))));
      break;
    case c10::TypeKind::MemoryFormatType:
      if (value.kind == ValueKind::kMemoryFormat)
        return constant(memory_format_from_wire(value.integer));
      break;
    default:
      if (value.kind == ValueKind::kInt)
        return constant(value.integer);
  }
  refuse_type(type);
}

Recipe tensor_list_recipe(const c10::Type& type, const Value& value, Cursor& cursor,
                          bool optional) {
  if (value.kind != ValueKind::kList)
    refuse_type(type);
  Recipe recipe = slot(optional ? RecipeKind::kOptionalTensorList : RecipeKind::kTensorList, 0);
  recipe.items.reserve(value.items.size());
  for (const Value& item : value.items)
    if (optional && item.kind == ValueKind::kNone)
      recipe.items.push_back(constant(c10::IValue()));
    else
      recipe.items.push_back(tensor_recipe(type, item, cursor));
  return recipe;
}

Recipe string_list(const c10::Type& type, const Value& value) {
  if (value.kind != ValueKind::kList)
    refuse_type(type);
  c10::List<std::string> strings;
  for (const Value& item : value.items) {
    if (item.kind != ValueKind::kString)
      refuse_type(type);
    strings.push_back(item.text);
  }
  return constant(std::move(strings));
}

Recipe bool_list(const c10::Type& type, const Value& value) {
  if (value.kind != ValueKind::kBoolList)
    refuse_type(type);
  c10::List<bool> list;
  for (const int64_t item : value.integers)
    list.push_back(item != 0);
  return constant(std::move(list));
}

Recipe float_list(const c10::Type& type, const Value& value, Cursor& cursor) {
  if (value.kind != ValueKind::kFloatList)
    refuse_type(type);
  Recipe recipe = slot(RecipeKind::kFloatList, cursor.number);
  recipe.count = static_cast<uint32_t>(value.count);
  return recipe;
}

Recipe scalar_list(const c10::Type& type, const Value& value, Cursor& cursor) {
  if (value.kind != ValueKind::kScalarList)
    refuse_type(type);
  Recipe recipe = slot(RecipeKind::kScalarList, cursor.number);
  for (const int64_t kind : value.integers)
    recipe.kinds.push_back(static_cast<ValueKind>(kind));
  return recipe;
}

Recipe list_recipe(const c10::Type& list, const c10::Type& element, const Value& value,
                   Cursor& cursor) {
  switch (element.kind()) {
    case c10::TypeKind::TensorType:
      return tensor_list_recipe(list, value, cursor, false);
    case c10::TypeKind::OptionalType: {
      const auto inner = element.castRaw<c10::OptionalType>()->getElementType();
      if (inner->kind() != c10::TypeKind::TensorType)
        refuse_type(list);
      return tensor_list_recipe(list, value, cursor, true);
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value.kind != ValueKind::kIntList)
        refuse_type(list);
      return constant(c10::List<int64_t>(c10::IntArrayRef(value.integers)));
    case c10::TypeKind::FloatType:
      return float_list(list, value, cursor);
    case c10::TypeKind::BoolType:
      return bool_list(list, value);
    case c10::TypeKind::NumberType:
      return scalar_list(list, value, cursor);
    case c10::TypeKind::StringType:
      return string_list(list, value);
    default:
      refuse_type(list);
  }
}

Recipe float_recipe(const c10::Type& type, const Value& value, Cursor& cursor) {
  if (value.kind == ValueKind::kFloat)
    return slot(RecipeKind::kFloat, cursor.number);
  if (value.kind == ValueKind::kConstFloat)
    return constant(value.real);
  refuse_type(type);
}

Recipe bool_recipe(const c10::Type& type, const Value& value) {
  if (value.kind == ValueKind::kTrue)
    return constant(true);
  if (value.kind == ValueKind::kFalse)
    return constant(false);
  refuse_type(type);
}

Recipe device_recipe(const c10::Type& type, const Value& value, c10::Device device) {
  if (value.kind == ValueKind::kDevice)
    return constant(device);
  if (value.kind == ValueKind::kCpuDevice)
    return constant(c10::Device(c10::kCPU));
  refuse_type(type);
}

// True when the elements fill their memory without gap or overlap, in any order.
bool is_dense(const wire::TensorSpec& spec) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, size
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    if (spec.sizes[i] == 0)
      return true;
    if (spec.sizes[i] != 1)
      steps.emplace_back(spec.strides[i], spec.sizes[i]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : steps) {
    if (stride != expected)
      return false;
    expected *= size;  // at most the number of elements, which fits
  }
  return true;
}

}  // namespace

TensorRecipe make_tensor_recipe(const wire::TensorSpec& spec) {
  TensorRecipe recipe;
  recipe.dtype = from_wire(spec.dtype);
  recipe.conj = spec.conj;
  recipe.neg = spec.neg;
  recipe.wrapped = spec.wrapped;
  if (spec.conj && !at::isComplexType(recipe.dtype))
    throw ProtocolError("a tensor that is not complex has a conjugate bit");
  if (spec.wrapped && !spec.sizes.empty())
    throw ProtocolError("a wrapped number has dimensions");
  recipe.extent = wire::extent_bytes(spec);
  recipe.sizes.assign(spec.sizes.begin(), spec.sizes.end());
  recipe.strides.assign(spec.strides.begin(), spec.strides.end());
  recipe.is_dense = is_dense(spec);
  return recipe;
}

Recipe make_recipe(const c10::Type& type, const Value& value, Cursor cursor, c10::Device device) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType: {
      if (value.kind == ValueKind::kNone)
        return constant(c10::IValue());
      const auto inner = type.castRaw<c10::OptionalType>()->getElementType();
      return make_recipe(*inner, value, cursor, device);
    }
    case c10::TypeKind::TensorType:
      return tensor_recipe(type, value, cursor);
    case c10::TypeKind::ListType:
      return list_recipe(type, *type.castRaw<c10::ListType>()->getElementType(), value, cursor);
    case c10::TypeKind::NumberType:
      return number_recipe(type, value, cursor);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return int_recipe(type, value);
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return float_recipe(type, value, cursor);
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return bool_recipe(type, value);
    case c10::TypeKind::StringType:
      if (value.kind != ValueKind::kString)
        refuse_type(type);
      return constant(value.text);
    case c10::TypeKind::ComplexType:
      if (value.kind != ValueKind::kComplex)
        refuse_type(type);
      return slot(RecipeKind::kComplex, cursor.number);
    case c10::TypeKind::GeneratorType:
      if (value.kind != ValueKind::kGenerator)
        refuse_type(type);
      return slot(RecipeKind::kGenerator, cursor.generator);
    case c10::TypeKind::DeviceObjType:
      return device_recipe(type, value, device);
    default:
      throw Refusal{"takes a " + type.str() + ", which this server does not accept"};
  }
}

}  // namespace torch_remote::marshal
