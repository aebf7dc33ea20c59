#include "wire/signature.h"

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

struct Scope {
  uint64_t storages = 0;
  uint64_t tensors = 0;
  uint64_t sparse_tensors = 0;
  uint64_t numbers = 0;
};

void decode_tensor(Reader& reader, Scope& scope, Value& value) {
  value.spec = decode_spec(reader);
  value.extent = extent_bytes(value.spec);
  const uint64_t storage = reader.varint();
  if (storage > scope.storages)
    throw ProtocolError("a tensor skips a storage number");
  if (storage == scope.storages)
    ++scope.storages;
  check_limit("tensors of a call", ++scope.tensors, kMaxTensors);
  value.storage = static_cast<uint32_t>(storage);
}

void decode_again(Reader& reader, const Scope& scope, Value& value) {
  value.integer = static_cast<int64_t>(reader.varint());
  if (static_cast<uint64_t>(value.integer) >= scope.tensors)
    throw ProtocolError("a key repeats a tensor that it has not mentioned");
}

// As the client's program gave it, which may be any bytes.
std::string any_string(Reader& reader) {
  const auto bytes = reader.bytes(kMaxText, "string");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void decode_list(Reader& reader, Scope& scope, Value& value);
void decode_sparse(Reader& reader, Scope& scope, Value& value);

Value decode_value(Reader& reader, Scope& scope, bool inside_list) {
  const uint8_t kind = reader.u8();
  if (kind >= kValueKindCount)
    throw ProtocolError("no value kind " + std::to_string(kind));
  Value value;
  value.kind = static_cast<ValueKind>(kind);
  switch (value.kind) {
    case ValueKind::kTensor:
      decode_tensor(reader, scope, value);
      break;
    case ValueKind::kAgain:
      decode_again(reader, scope, value);
      break;
    case ValueKind::kSparse:
      decode_sparse(reader, scope, value);
      break;
    case ValueKind::kSparseAgain:
      value.integer = static_cast<int64_t>(reader.varint());
      if (static_cast<uint64_t>(value.integer) >= scope.sparse_tensors)
        throw ProtocolError("a key repeats a sparse tensor that it has not mentioned");
      break;
    case ValueKind::kScalarTensor:
      value.spec.dtype = checked_dtype(reader.u8());
      value.spec.wrapped = reader.u8() != 0;
      break;
    case ValueKind::kInt:
    case ValueKind::kConstScalarInt:
      value.integer = reader.zigzag();
      break;
    case ValueKind::kConstFloat:
    case ValueKind::kConstScalarFloat:
      value.real = reader.f64();
      break;
    case ValueKind::kString:
      value.text = any_string(reader);
      break;
    case ValueKind::kDtype:
      value.integer = static_cast<int64_t>(checked_dtype(reader.u8()));
      break;
    case ValueKind::kLayout:
      value.integer = static_cast<int64_t>(checked_layout(reader.u8()));
      break;
    case ValueKind::kMemoryFormat:
      value.integer = reader.u8();
      if (value.integer > 3)
        throw ProtocolError("no such memory format");
      break;
    case ValueKind::kIntList:
    case ValueKind::kBoolList:
    case ValueKind::kFloatList:
    case ValueKind::kScalarList:
    case ValueKind::kList:
      if (inside_list)
        throw ProtocolError("a list inside a list");
      decode_list(reader, scope, value);
      break;
    default:
      break;
  }
  return value;
}

void decode_sparse(Reader& reader, Scope& scope, Value& value) {
  value.sparse = decode_sparse_spec(reader);
  check_limit("tensors of a call", ++scope.sparse_tensors, kMaxTensors);
  for (size_t i = 0; i < part_count(value.sparse.layout); ++i) {
    Value& part = value.items.emplace_back();
    const auto kind = static_cast<ValueKind>(reader.u8());
    if (kind != ValueKind::kTensor && kind != ValueKind::kAgain)
      throw ProtocolError("a part of a sparse tensor is not a tensor");
    part.kind = kind;
    if (kind == ValueKind::kTensor)
      decode_tensor(reader, scope, part);
    else
      decode_again(reader, scope, part);
  }
}

void decode_list(Reader& reader, Scope& scope, Value& value) {
  const uint64_t n = reader.count(kMaxListLength, "list");
  const bool has_numbers =
      value.kind == ValueKind::kFloatList || value.kind == ValueKind::kScalarList;
  if (has_numbers)
    check_limit("numbers of a call", scope.numbers += n, kMaxNumbers);
  for (uint64_t i = 0; i < n; ++i) {
    switch (value.kind) {
      case ValueKind::kIntList:
        value.integers.push_back(reader.zigzag());
        break;
      case ValueKind::kBoolList:
        value.integers.push_back(reader.u8() != 0);
        break;
      case ValueKind::kScalarList: {
        const uint8_t kind = reader.u8();
        const bool is_number = (kind >= static_cast<uint8_t>(ValueKind::kScalarInt) &&
                                kind <= static_cast<uint8_t>(ValueKind::kScalarBool)) ||
                               kind == static_cast<uint8_t>(ValueKind::kScalarUnsigned);
        if (!is_number)
          throw ProtocolError("a list of numbers holds something else");
        value.integers.push_back(kind);
        break;
      }
      case ValueKind::kList:
        value.items.push_back(decode_value(reader, scope, true));
        break;
      default:
        value.count = n;
        return;  // the key has only the number of floats
    }
  }
}

Output decode_output(Reader& reader, uint64_t tensors, bool inside_list) {
  Output output;
  const uint8_t kind = reader.u8();
  if (kind > 4)
    throw ProtocolError("no output kind " + std::to_string(kind));
  output.kind = static_cast<OutputKind>(kind);
  if (output.kind == OutputKind::kFresh)
    output.spec = decode_spec(reader);
  if (output.kind == OutputKind::kInt)
    output.integer = reader.zigzag();
  if (output.kind == OutputKind::kTensor) {
    output.tensor = reader.varint();
    if (output.tensor >= tensors)
      throw ProtocolError("an output names a tensor that is not there");
  }
  if (output.kind == OutputKind::kList) {
    if (inside_list)
      throw ProtocolError("a list inside a list");
    const uint64_t n = reader.count(kMaxListLength, "output list");
    for (uint64_t i = 0; i < n; ++i)
      output.items.push_back(decode_output(reader, tensors, true));
  }
  return output;
}

uint64_t decode_key(Reader reader, Signature& signature) {
  reader.varint();  // the client's number for the operator
  signature.device = reader.u8();
  if (signature.device >= kMaxDevices)
    throw ProtocolError("no such device");
  signature.grad_mode = (reader.u8() & 128) != 0;
  Scope scope;
  const uint64_t n = reader.count(kMaxArguments, "arguments");
  for (uint64_t i = 0; i < n; ++i)
    signature.arguments.push_back(decode_value(reader, scope, false));
  const uint64_t storages = reader.count(kMaxTensors, "storages");
  if (storages != scope.storages)
    throw ProtocolError("a key has a wrong number of storages");
  for (uint64_t i = 0; i < storages; ++i) {
    FreshStorage storage;
    const uint8_t where = reader.u8();
    storage.fresh = (where & 1) != 0;
    storage.device = where >> 1;
    if (storage.device >= kMaxDevices)
      throw ProtocolError("no such device");
    if (storage.fresh)
      storage.nbytes = reader.count(kMaxStorageBytes, "bytes of a storage");
    signature.storages.push_back(storage);
  }
  reader.finish();
  return scope.tensors;
}

Introduction decode_introduction(Reader& reader) {
  Introduction introduction;
  introduction.name = reader.text(kMaxText, "operator name");
  introduction.overload = reader.text(kMaxText, "overload name");
  const uint64_t n = reader.count(kMaxArguments, "arguments");
  for (uint64_t i = 0; i < n; ++i)
    introduction.arguments.emplace_back(reader.text(kMaxText, "argument name"));
  return introduction;
}

}  // namespace

void encode(Writer& writer, const Output& output) {
  writer.u8(static_cast<uint8_t>(output.kind));
  if (output.kind == OutputKind::kFresh)
    encode(writer, output.spec);
  if (output.kind == OutputKind::kTensor)
    writer.varint(output.tensor);
  if (output.kind == OutputKind::kInt)
    writer.zigzag(output.integer);
  if (output.kind != OutputKind::kList)
    return;
  writer.varint(output.items.size());
  for (const Output& item : output.items)
    encode(writer, item);
}

void encode(Writer& writer, const SignatureParts& parts) {
  writer.varint(parts.index);
  writer.varint(parts.operator_id);
  if (parts.introduction != nullptr) {
    writer.text(parts.introduction->name);
    writer.text(parts.introduction->overload);
    writer.varint(parts.introduction->arguments.size());
    for (const std::string& name : parts.introduction->arguments)
      writer.text(name);
  }
  writer.varint(parts.defaults.size());
  for (const uint32_t index : parts.defaults)
    writer.varint(index);
  writer.bytes(parts.key);
  writer.u8(parts.outputs_known ? 1 : 0);
  if (!parts.outputs_known)
    return;
  writer.varint(parts.outputs.size());
  for (const Output& output : parts.outputs)
    encode(writer, output);
}

Signature decode_signature(Reader& reader, uint32_t next_operator) {
  Signature signature;
  signature.index = static_cast<uint32_t>(reader.count(kMaxSignatures - 1, "signature index"));
  signature.operator_id = static_cast<uint32_t>(reader.count(kMaxOperators - 1, "operator id"));
  if (signature.operator_id > next_operator)
    throw ProtocolError("an operator id is skipped");
  if (signature.operator_id == next_operator)
    signature.introduction = decode_introduction(reader);
  const uint64_t defaults = reader.count(kMaxArguments, "defaults");
  for (uint64_t i = 0; i < defaults; ++i)
    signature.defaults.push_back(static_cast<uint32_t>(reader.count(kMaxArguments, "argument")));
  const uint64_t tensors = decode_key(Reader(reader.bytes(kMaxSignatureBytes, "key")), signature);
  signature.outputs_known = reader.u8() != 0;
  if (!signature.outputs_known)
    return signature;
  const uint64_t n = reader.count(kMaxArguments, "outputs");
  for (uint64_t i = 0; i < n; ++i)
    signature.outputs.push_back(decode_output(reader, tensors, false));
  return signature;
}

}  // namespace torch_remote::wire
