#include "schema_values.h"

#include <algorithm>

#include <ATen/core/jit_type.h>

namespace torch_remote::fuzz {
namespace {

using wire::ValueKind;
using wire::Writer;

// A key that is being written.
struct Key {
  Writer values;
  Writer storages;
  uint64_t storage_count = 0;
  uint64_t tensor_count = 0;
  uint64_t sparse_count = 0;
};

void put(Key& key, ValueKind kind) {
  key.values.u8(static_cast<uint8_t>(kind));
}

void draw_strided(Draw& draw, Key& key);

void draw_sparse(Draw& draw, Key& key) {
  if (key.sparse_count > 0 && draw.rarely(4)) {
    put(key, ValueKind::kSparseAgain);
    return key.values.varint(draw.below(key.sparse_count));
  }
  put(key, ValueKind::kSparse);
  wire::SparseSpec spec;
  spec.layout = static_cast<wire::Layout>(1 + draw.below(5));
  spec.is_coalesced = spec.layout == wire::Layout::kSparseCoo && draw.rarely(2);
  for (uint64_t i = draw.below(4); i > 0; --i)
    spec.sizes.push_back(static_cast<int64_t>(draw.rarely(16) ? draw.number() : draw.below(8)));
  encode(key.values, spec);
  ++key.sparse_count;
  for (size_t i = 0; i < wire::part_count(spec.layout); ++i)
    draw_strided(draw, key);
}

void draw_tensor(Draw& draw, Key& key) {
  const uint8_t choice = draw.byte();
  if (choice >= 208 && choice < 224)
    return draw_sparse(draw, key);
  if (choice >= 248)
    return put(key, ValueKind::kUndefined);
  if (choice >= 240) {
    put(key, ValueKind::kScalarTensor);
    key.values.u8(static_cast<uint8_t>(draw.below(wire::kDtypeCount)));
    return key.values.u8(draw.byte() & 1);
  }
  if (choice >= 224 && key.tensor_count > 0) {
    put(key, ValueKind::kAgain);
    return key.values.varint(draw.below(key.tensor_count));
  }
  draw_strided(draw, key);
}

void draw_strided(Draw& draw, Key& key) {
  put(key, ValueKind::kTensor);
  draw_spec(draw, key.values);
  ++key.tensor_count;
  const uint64_t storage = draw.rarely(4) ? draw.below(key.storage_count + 1) : key.storage_count;
  key.values.varint(storage);
  if (storage != key.storage_count)
    return;
  ++key.storage_count;
  const bool is_fresh = draw.rarely(8);
  key.storages.u8(is_fresh ? 1 : 0);
  if (is_fresh)
    key.storages.varint(draw.number());
}

void draw_number(Draw& draw, Key& key) {
  constexpr std::array<ValueKind, 7> kKinds = {
      ValueKind::kScalarInt,        ValueKind::kScalarFloat,    ValueKind::kScalarBool,
      ValueKind::kScalarComplex,    ValueKind::kScalarUnsigned, ValueKind::kConstScalarInt,
      ValueKind::kConstScalarFloat,
  };
  const ValueKind kind = kKinds[draw.below(kKinds.size())];
  put(key, kind);
  if (kind == ValueKind::kConstScalarInt)
    key.values.zigzag(draw.signed_number());
  if (kind == ValueKind::kConstScalarFloat)
    key.values.f64(draw.real());
}

// dtype, layout and memory format are ints in a schema.
void draw_int(Draw& draw, Key& key) {
  switch (draw.below(8)) {
    case 5:
      put(key, ValueKind::kDtype);
      return key.values.u8(static_cast<uint8_t>(draw.below(wire::kDtypeCount)));
    case 6:
      put(key, ValueKind::kLayout);
      return key.values.u8(draw.rarely(16) ? draw.byte() : static_cast<uint8_t>(draw.below(6)));
    case 7:
      put(key, ValueKind::kMemoryFormat);
      return key.values.u8(static_cast<uint8_t>(draw.below(5)));
    default:
      put(key, ValueKind::kInt);
      return key.values.zigzag(draw.signed_number());
  }
}

void draw_anything(Draw& draw, Key& key) {
  const auto kind = static_cast<uint8_t>(draw.below(wire::kValueKindCount + 1));
  key.values.u8(kind);
  key.values.raw(draw.bytes(16));
}

void draw_value(Draw& draw, const c10::Type& type, Key& key);

void draw_list(Draw& draw, const c10::Type& element, Key& key) {
  const uint64_t count = draw.rarely(32) ? draw.number() : draw.below(4);
  const auto kind = element.kind();
  if (kind == c10::TypeKind::FloatType) {
    put(key, ValueKind::kFloatList);
    return key.values.varint(count);
  }
  const bool is_int = kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType;
  const bool is_bool = kind == c10::TypeKind::BoolType;
  const bool is_number = kind == c10::TypeKind::NumberType;
  put(key, is_int      ? ValueKind::kIntList
           : is_bool   ? ValueKind::kBoolList
           : is_number ? ValueKind::kScalarList
                       : ValueKind::kList);
  key.values.varint(count);
  for (uint64_t i = 0; i < std::min<uint64_t>(count, 8); ++i)
    if (is_int)
      key.values.zigzag(draw.signed_number());
    else if (is_bool)
      key.values.u8(draw.byte() & 1);
    else if (is_number)
      key.values.u8(static_cast<uint8_t>(8 + draw.below(4)));
    else
      draw_value(draw, element, key);
}

void draw_value(Draw& draw, const c10::Type& type, Key& key) {
  if (draw.rarely(32))
    return draw_anything(draw, key);
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      if (draw.rarely(2))
        return put(key, ValueKind::kNone);
      return draw_value(draw, *type.castRaw<c10::OptionalType>()->getElementType(), key);
    case c10::TypeKind::TensorType:
      return draw_tensor(draw, key);
    case c10::TypeKind::ListType:
      return draw_list(draw, *type.castRaw<c10::ListType>()->getElementType(), key);
    case c10::TypeKind::NumberType:
      return draw_number(draw, key);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return draw_int(draw, key);
    case c10::TypeKind::FloatType:
      if (!draw.rarely(4))
        return put(key, ValueKind::kFloat);
      put(key, ValueKind::kConstFloat);
      return key.values.f64(draw.real());
    case c10::TypeKind::BoolType:
      return put(key, draw.rarely(2) ? ValueKind::kTrue : ValueKind::kFalse);
    case c10::TypeKind::StringType:
      put(key, ValueKind::kString);
      return key.values.text(draw.text());
    case c10::TypeKind::ComplexType:
      return put(key, ValueKind::kComplex);
    case c10::TypeKind::GeneratorType:
      return put(key, ValueKind::kGenerator);
    case c10::TypeKind::DeviceObjType:
      return put(key, draw.rarely(4) ? ValueKind::kCpuDevice : ValueKind::kDevice);
    default:
      return draw_anything(draw, key);
  }
}

Key draw_key(Draw& draw, const c10::FunctionSchema& schema) {
  Key key;
  for (const c10::Argument& argument : schema.arguments())
    draw_value(draw, *argument.type(), key);
  return key;
}

void draw_output(Draw& draw, const c10::Type& type, uint64_t tensors, Writer& writer) {
  const bool is_list = type.kind() == c10::TypeKind::ListType;
  const uint64_t kind = draw.rarely(16) ? draw.below(5) : is_list ? 3 : draw.rarely(4) ? 2 : 1;
  writer.u8(static_cast<uint8_t>(kind));
  if (kind == 1)
    return draw_spec(draw, writer);
  if (kind == 2)
    return writer.varint(tensors == 0 ? draw.number() : draw.below(tensors));
  if (kind == 4)
    return writer.zigzag(draw.signed_number());
  if (kind != 3)
    return;
  const uint64_t count = draw.below(4);
  writer.varint(count);
  for (uint64_t i = 0; i < count; ++i) {
    writer.u8(1);
    draw_spec(draw, writer);
  }
}

void draw_introduction(Draw& draw, const c10::FunctionSchema& schema, Writer& writer) {
  writer.text(draw.rarely(64) ? draw.text() : schema.name());
  writer.text(schema.overload_name());
  writer.varint(schema.arguments().size());
  for (const c10::Argument& argument : schema.arguments())
    writer.text(draw.rarely(32) ? draw.text() : argument.name());
}

void draw_scalar(Draw& draw, ValueKind kind, Writer& writer) {
  switch (kind) {
    case ValueKind::kScalarInt:
      return writer.zigzag(draw.signed_number());
    case ValueKind::kScalarUnsigned:
      return writer.varint(draw.number());
    case ValueKind::kScalarBool:
      return writer.u8(draw.rarely(64) ? draw.byte() : draw.byte() & 1);
    case ValueKind::kComplex:
    case ValueKind::kScalarComplex:
      writer.f64(draw.real());
      return writer.f64(draw.real());
    default:
      return writer.f64(draw.real());
  }
}

}  // namespace

const std::vector<c10::OperatorHandle>& all_operators() {
  static const std::vector<c10::OperatorHandle> kAll = [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    auto names = dispatcher.getAllOpNames();
    std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
      return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
    });
    std::vector<c10::OperatorHandle> all;
    for (const auto& name : names)
      if (const auto handle = dispatcher.findSchema(name))
        all.push_back(*handle);
    return all;
  }();
  return kAll;
}

void draw_signature(Draw& draw, const c10::OperatorHandle& operation, const Naming& naming,
                    Writer& writer) {
  const c10::FunctionSchema& schema = operation.schema();
  writer.varint(naming.index);
  writer.varint(naming.number);
  if (!naming.is_introduced)
    draw_introduction(draw, schema, writer);
  const uint64_t defaults = draw.rarely(16) ? draw.below(4) : 0;
  writer.varint(defaults);
  for (uint64_t i = 0; i < defaults; ++i)
    writer.varint(draw.number());
  const Key drawn = draw_key(draw, schema);
  Writer key;
  key.varint(naming.number);
  key.u8(draw.rarely(16) ? draw.byte() : 0);
  key.u8(draw.byte());
  key.varint(schema.arguments().size());
  key.raw(drawn.values.view());
  key.varint(drawn.storage_count);
  key.raw(drawn.storages.view());
  writer.bytes(key.view());
  const bool outputs_known = !draw.rarely(4);
  writer.u8(outputs_known ? 1 : 0);
  if (!outputs_known)
    return;
  writer.varint(schema.returns().size());
  for (const c10::Argument& result : schema.returns())
    draw_output(draw, *result.type(), drawn.tensor_count, writer);
}

namespace {

// Slots in the order of the key.
class SlotWriter {
 public:
  SlotWriter(Draw& draw, Writer& writer, wire::NameState& names,
             const std::function<uint64_t(bool)>& next_name, const wire::Signature& signature)
      : draw_(draw), writer_(writer), names_(names), next_name_(next_name), signature_(signature) {}

  void put(const wire::Value& value) {
    switch (value.kind) {
      case ValueKind::kTensor:
        return tensor(value);
      case ValueKind::kScalarTensor:
        for (uint64_t i = 0; i < wire::element_bytes(value.spec.dtype); ++i)
          writer_.u8(draw_.byte());
        return;
      case ValueKind::kFloatList:
        return list(value.count, [](uint64_t) { return ValueKind::kFloat; });
      case ValueKind::kScalarList:
        return list(value.integers.size(),
                    [&](uint64_t i) { return static_cast<ValueKind>(value.integers[i]); });
      case ValueKind::kGenerator:
        return writer_.varint(draw_.number());
      case ValueKind::kList:
      case ValueKind::kSparse:
        for (const wire::Value& item : value.items)
          put(item);
        return;
      case ValueKind::kFloat:
      case ValueKind::kComplex:
      case ValueKind::kScalarInt:
      case ValueKind::kScalarFloat:
      case ValueKind::kScalarComplex:
      case ValueKind::kScalarBool:
      case ValueKind::kScalarUnsigned:
        return draw_scalar(draw_, value.kind, writer_);
      default:
        return;
    }
  }

  void outputs(const std::vector<wire::Output>& list) {
    for (const wire::Output& output : list) {
      if (output.kind == wire::OutputKind::kFresh)
        wire::encode_name(writer_, names_, next_name_(true));
      outputs(output.items);
    }
  }

 private:
  uint64_t offset() { return draw_.rarely(4) ? draw_.number() : 0; }

  void tensor(const wire::Value& value) {
    if (value.storage != mentioned_)
      return writer_.varint(offset());
    const bool is_fresh = signature_.storages[mentioned_++].fresh;
    wire::encode_storage_slot(writer_, names_, next_name_(is_fresh), offset());
  }

  template <typename Kind>
  void list(uint64_t count, Kind&& kind) {
    const bool same = draw_.rarely(2) && count > 0;
    writer_.u8(same ? 1 : 0);
    for (uint64_t i = 0; i < (same ? 1 : std::min<uint64_t>(count, 64)); ++i)
      draw_scalar(draw_, kind(i), writer_);
  }

  Draw& draw_;
  Writer& writer_;
  wire::NameState& names_;
  const std::function<uint64_t(bool)>& next_name_;
  const wire::Signature& signature_;
  uint32_t mentioned_ = 0;
};

}  // namespace

void draw_slots(Draw& draw, const wire::Signature& signature, Writer& writer,
                wire::NameState& names, const std::function<uint64_t(bool is_new)>& next_name) {
  SlotWriter slots(draw, writer, names, next_name, signature);
  for (const wire::Value& value : signature.arguments)
    slots.put(value);
  slots.outputs(signature.outputs);
}

}  // namespace torch_remote::fuzz
