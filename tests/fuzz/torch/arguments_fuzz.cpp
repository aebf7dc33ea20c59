// A SIGNATURE for an operator of the installed torch and the slots of one call, through all code
// between the bytes and the kernel. It is refused, or the stack fits the schema.
//
//   input := 0:u8 mod 2 operator:u16 choices    signature and slots are drawn (schema_values.h)
//          | 1:u8 mod 2 SIGNATURE CALL          as they stand on the wire
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "marshal/decode.h"
#include "schema_values.h"
#include "server/executor/storage_table.h"
#include "server/operators/operators.h"

namespace torch_remote::fuzz {
namespace {

constexpr uint64_t kStorageBytes = 512;

[[noreturn]] void complain(const c10::FunctionSchema& schema, const std::string& what) {
  std::cerr << schema << ": " << what << '\n';
  std::abort();
}

// toScalar() takes numbers above 2^63-1 too, and isScalar() does not say so.
bool is_number(const c10::IValue& value) {
  return value.isScalar() || value.isUnsigned();
}

bool fits_list(const c10::Type& element, const c10::IValue& value) {
  switch (element.kind()) {
    case c10::TypeKind::TensorType:
      return value.isTensorList();
    case c10::TypeKind::OptionalType:
      return value.isOptionalTensorList();
    case c10::TypeKind::IntType:
      return value.isIntList();
    case c10::TypeKind::FloatType:
      return value.isDoubleList();
    case c10::TypeKind::BoolType:
      return value.isBoolList();
    case c10::TypeKind::NumberType:
      return value.isList() &&
             std::all_of(value.toListRef().begin(), value.toListRef().end(), is_number);
    case c10::TypeKind::StringType:
      return value.isList() && std::all_of(value.toListRef().begin(), value.toListRef().end(),
                                           [](const auto& item) { return item.isString(); });
    default:
      return false;
  }
}

// What unboxing will take without looking twice.
bool fits(const c10::Type& type, const c10::IValue& value) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return value.isNone() || fits(*type.castRaw<c10::OptionalType>()->getElementType(), value);
    case c10::TypeKind::TensorType:
      return value.isTensor();
    case c10::TypeKind::ListType:
      return fits_list(*type.castRaw<c10::ListType>()->getElementType(), value);
    case c10::TypeKind::IntType:
      return value.isInt();
    case c10::TypeKind::FloatType:
      return value.isDouble();
    case c10::TypeKind::BoolType:
      return value.isBool();
    case c10::TypeKind::NumberType:
      return is_number(value);
    case c10::TypeKind::StringType:
      return value.isString();
    case c10::TypeKind::ComplexType:
      return value.isComplexDouble();
    case c10::TypeKind::GeneratorType:
      return value.isGenerator();
    case c10::TypeKind::DeviceObjType:
      return value.isDevice();
    default:
      return false;
  }
}

void check_stack(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  if (stack.size() != schema.arguments().size())
    complain(schema, "another number of arguments");
  for (size_t i = 0; i < stack.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!fits(*argument.type(), stack[i]))
      complain(schema, argument.name() + " is a " + stack[i].tagKind());
  }
}

// Every storage is there, with kStorageBytes bytes. Nothing: what the server answers with an error.
std::optional<std::vector<at::Tensor>> resolve(const marshal::Plan& plan,
                                               const marshal::Slots& slots) {
  server::Uploads uploads;
  const server::Devices devices(c10::kCPU, 1);
  server::Streams streams(devices);
  server::StorageTable table(uploads, streams);
  std::vector<server::Entry*> entries;
  for (size_t i = 0; i < plan.storages.size(); ++i)
    entries.push_back(&table.make(i + 1, kStorageBytes, c10::kCPU, 0, {}));
  std::vector<at::Tensor> tensors;
  try {
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      const marshal::TensorRecipe& view = plan.tensors[i];
      tensors.push_back(table.resolve(*entries[view.storage], view, slots.offsets[i]));
    }
  } catch (const server::Refused&) {
    return std::nullopt;
  } catch (const c10::Error&) {  // sizes whose product overflows beside a 0
    return std::nullopt;
  }
  return tensors;
}

void call(wire::Signature signature, wire::Reader& reader) {
  static const server::OperatorTable kTable;
  const server::Operator operation = kTable.find(std::move(*signature.introduction));
  const marshal::Plan plan = marshal::make_plan(signature, operation.callee, c10::kCPU);
  wire::NameState names;
  marshal::Slots slots;
  marshal::read_slots(plan, reader, names, slots);
  if (!plan.refusal.empty())
    return;
  auto tensors = resolve(plan, slots);
  if (!tensors)
    return;
  const std::vector<at::Generator> generators(slots.generators.size(),
                                              at::detail::getDefaultCPUGenerator());
  const std::vector<at::Tensor> sparse(plan.sparse.size());
  torch::jit::Stack stack;
  marshal::build_stack(plan, slots, {*tensors, sparse, generators}, stack);
  check_stack(*operation.callee.schema, stack);
}

void run_drawn(std::span<const std::byte> input) {
  Draw draw(input);
  const c10::OperatorHandle& operation = all_operators()[draw.below(all_operators().size())];
  wire::Writer written;
  draw_signature(draw, operation, Naming(), written);
  wire::Reader reader(written.view());
  wire::Signature signature = wire::decode_signature(reader, 0);
  wire::Writer slots;
  wire::NameState names;
  draw_slots(draw, signature, slots, names, [&](bool) { return draw.number(); });
  wire::Reader slot_reader(slots.view());
  call(std::move(signature), slot_reader);
}

void run_raw(std::span<const std::byte> input) {
  wire::Reader reader(input);
  reader.u8();
  wire::Reader ahead = reader;
  ahead.varint();
  const uint64_t number = ahead.varint();  // each is taken for one that is introduced here
  wire::Signature signature = wire::decode_signature(reader, static_cast<uint32_t>(number));
  reader.u8();
  reader.varint();
  call(std::move(signature), reader);
}

}  // namespace
}  // namespace torch_remote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  static const c10::InferenceMode kInferenceMode;
  try {
    const auto input = std::as_bytes(std::span(data, size)).subspan(1);
    data[0] % 2 == 0 ? torch_remote::fuzz::run_drawn(input) : torch_remote::fuzz::run_raw(input);
  } catch (const torch_remote::ProtocolError&) {
  }
  return 0;
}
