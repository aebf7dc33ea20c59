#include "marshal/decode.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/complex.h>

#include "base/error.h"

namespace torch_remote::marshal {
namespace {

using wire::decode_number;
using wire::Reader;
using wire::ValueKind;

Number read_complex(Reader& reader) {
  const auto real = decode_number<double>(reader);
  const auto imaginary = decode_number<double>(reader);
  return Number::of(c10::complex<double>(real, imaginary));
}

Number read_scalar(Reader& reader, ValueKind kind) {
  switch (kind) {
    case ValueKind::kScalarInt:
      return Number::of(decode_number<int64_t>(reader));
    case ValueKind::kScalarUnsigned:
      return Number::of(decode_number<uint64_t>(reader));
    case ValueKind::kScalarFloat:
      return Number::of(decode_number<double>(reader));
    case ValueKind::kScalarBool:
      return Number::of(decode_number<bool>(reader));
    default:
      return read_complex(reader);
  }
}

// A list slot begins with `same`: true if one value stands for all elements.
bool read_same(Reader& reader, uint32_t count) {
  const bool same = decode_number<bool>(reader);
  if (same && count == 0)
    throw ProtocolError("an empty list has a value");
  return same;
}

void read_float_list(Reader& reader, uint32_t count, Slots& slots) {
  if (read_same(reader, count)) {
    slots.numbers.append(count, Number::of(decode_number<double>(reader)));
    return;
  }
  for (uint32_t i = 0; i < count; ++i)
    slots.numbers.push_back(Number::of(decode_number<double>(reader)));
}

void read_scalar_list(Reader& reader, std::span<const ValueKind> kinds, Slots& slots) {
  if (!read_same(reader, static_cast<uint32_t>(kinds.size()))) {
    for (const ValueKind kind : kinds)
      slots.numbers.push_back(read_scalar(reader, kind));
    return;
  }
  for (const ValueKind kind : kinds)
    if (kind != kinds[0])
      throw ProtocolError("numbers of different types are said to be the same");
  slots.numbers.append(kinds.size(), read_scalar(reader, kinds[0]));
}

void read_step(const Plan& plan, const SlotStep& step, Reader& reader, wire::NameState& names,
               Slots& slots) {
  switch (step.kind) {
    case SlotKind::kStorage: {
      const wire::StorageSlot slot = wire::decode_storage_slot(reader, names);
      slots.storages.push_back(slot.name);
      slots.offsets.push_back(slot.offset);
      return;
    }
    case SlotKind::kOffset:
      slots.offsets.push_back(wire::decode_offset(reader));
      return;
    case SlotKind::kInt:
      slots.numbers.push_back(Number::of(decode_number<int64_t>(reader)));
      return;
    case SlotKind::kUnsigned:
      slots.numbers.push_back(Number::of(decode_number<uint64_t>(reader)));
      return;
    case SlotKind::kFloat:
      slots.numbers.push_back(Number::of(decode_number<double>(reader)));
      return;
    case SlotKind::kComplex:
      slots.numbers.push_back(read_complex(reader));
      return;
    case SlotKind::kBool:
      slots.numbers.push_back(Number::of(decode_number<bool>(reader)));
      return;
    case SlotKind::kRaw:
      slots.numbers.push_back(Number::of_raw(wire::decode_element(reader, step.count)));
      return;
    case SlotKind::kFloatList:
      return read_float_list(reader, step.count, slots);
    case SlotKind::kScalarList:
      return read_scalar_list(reader, std::span(plan.scalar_kinds).subspan(step.first, step.count),
                              slots);
    case SlotKind::kGenerator:
      slots.generators.push_back(decode_number<uint64_t>(reader));
      return;
  }
}

at::Tensor make_scalar_tensor(const Recipe& recipe, const Number& number) {
  at::Tensor tensor = at::detail::empty_cpu({}, recipe.dtype, false, std::nullopt);
  std::memcpy(tensor.mutable_data_ptr(), number.data(), tensor.itemsize());
  if (recipe.wrapped)
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

c10::IValue make_scalar(ValueKind kind, const Number& number) {
  switch (kind) {
    case ValueKind::kScalarUnsigned:
      return number.as<uint64_t>();
    case ValueKind::kScalarInt:
      return number.as<int64_t>();
    case ValueKind::kScalarFloat:
      return number.as<double>();
    case ValueKind::kScalarBool:
      return number.as<bool>();
    default:
      return number.as<c10::complex<double>>();
  }
}

// Makes the lists of a call, from the numbers and tensors of its slots.
struct Filler {
  const Scalars& scalars;
  const Resolved& resolved;

  at::Tensor tensor(const Recipe& recipe) const {
    if (recipe.kind == RecipeKind::kTensor) {
      at::Tensor& tensor = resolved.tensors[recipe.index];
      return recipe.is_last_use ? std::move(tensor) : tensor;
    }
    if (recipe.kind == RecipeKind::kSparse)
      return resolved.sparse[recipe.index];
    if (recipe.kind == RecipeKind::kConstant)
      return recipe.constant.toTensor();
    return make_scalar_tensor(recipe, scalars.numbers[recipe.index]);
  }

  c10::IValue tensor_list(const Recipe& recipe) const {
    c10::List<at::Tensor> list;
    list.reserve(recipe.items.size());
    for (const Recipe& item : recipe.items)
      list.push_back(tensor(item));
    return list;
  }

  c10::IValue optional_tensor_list(const Recipe& recipe) const {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(recipe.items.size());
    for (const Recipe& item : recipe.items) {
      const bool is_none = item.kind == RecipeKind::kConstant && item.constant.isNone();
      list.push_back(is_none ? std::nullopt : std::optional(tensor(item)));
    }
    return list;
  }

  c10::IValue float_list(const Recipe& recipe) const {
    c10::List<double> list;
    list.reserve(recipe.count);
    for (uint32_t i = 0; i < recipe.count; ++i)
      list.push_back(scalars.numbers[recipe.index + i].as<double>());
    return list;
  }

  c10::IValue scalar_list(const Recipe& recipe) const {
    c10::impl::GenericList list(c10::NumberType::get());
    list.reserve(recipe.kinds.size());
    for (size_t i = 0; i < recipe.kinds.size(); ++i)
      list.push_back(make_scalar(recipe.kinds[i], scalars.numbers[recipe.index + i]));
    return list;
  }

  c10::IValue make(const Recipe& recipe) const {
    switch (recipe.kind) {
      case RecipeKind::kConstant:
        return recipe.constant;
      case RecipeKind::kTensor:
      case RecipeKind::kSparse:
      case RecipeKind::kScalarTensor:
        return tensor(recipe);
      case RecipeKind::kTensorList:
        return tensor_list(recipe);
      case RecipeKind::kOptionalTensorList:
        return optional_tensor_list(recipe);
      case RecipeKind::kInt:
        return scalars.numbers[recipe.index].as<int64_t>();
      case RecipeKind::kUnsigned:
        return scalars.numbers[recipe.index].as<uint64_t>();
      case RecipeKind::kFloat:
        return scalars.numbers[recipe.index].as<double>();
      case RecipeKind::kComplex:
        return scalars.numbers[recipe.index].as<c10::complex<double>>();
      case RecipeKind::kBool:
        return scalars.numbers[recipe.index].as<bool>();
      case RecipeKind::kFloatList:
        return float_list(recipe);
      case RecipeKind::kScalarList:
        return scalar_list(recipe);
      case RecipeKind::kGenerator:
        return resolved.generators[recipe.index];
    }
    throw InternalError("an argument recipe of unknown kind");
  }
};

}  // namespace

void read_slots(const Plan& plan, Reader& reader, wire::NameState& names, Slots& slots) {
  slots.storages.clear();
  slots.offsets.clear();
  slots.numbers.clear();
  slots.generators.clear();
  slots.outputs.clear();
  for (const SlotStep& step : plan.steps)
    read_step(plan, step, reader, names, slots);
  for (uint32_t i = 0; i < plan.fresh_outputs; ++i)
    slots.outputs.push_back(wire::decode_name(reader, names));
}

void build_stack(const Plan& plan, const Scalars& scalars, const Resolved& resolved,
                 torch::jit::Stack& stack) {
  const Filler filler{scalars, resolved};
  stack.reserve(plan.arguments.size());
  for (const Recipe& recipe : plan.arguments)
    stack.push_back(filler.make(recipe));
}

}  // namespace torch_remote::marshal
