#include "marshal/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "base/error.h"

namespace torch_remote::marshal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using wire::Value;
using wire::ValueKind;

const c10::FunctionSchema& schema_of(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema();
}

Value of_kind(ValueKind kind) {
  Value value;
  value.kind = kind;
  return value;
}

Value tensor(std::vector<int64_t> sizes, uint32_t storage) {
  Value value = of_kind(ValueKind::kTensor);
  value.spec.strides = wire::contiguous_strides(sizes);
  value.spec.sizes = std::move(sizes);
  value.storage = storage;
  value.extent = wire::extent_bytes(value.spec);
  return value;
}

Value again(int64_t index) {
  Value value = of_kind(ValueKind::kAgain);
  value.integer = index;
  return value;
}

wire::Signature signature_of(std::vector<Value> arguments, size_t storages) {
  wire::Signature signature;
  signature.arguments = std::move(arguments);
  signature.storages.resize(storages);
  signature.outputs_known = true;
  return signature;
}

Plan plan_for(const wire::Signature& signature, const char* name, const char* overload,
              std::vector<std::string> arguments, bool overwrites_self = false) {
  Callee callee;
  callee.schema = &schema_of(name, overload);
  callee.arguments = std::move(arguments);
  callee.overwrites_self = overwrites_self;
  return make_plan(signature, callee, c10::Device(c10::kCPU));
}

Slots read(const Plan& plan, const wire::Writer& writer) {
  wire::Reader reader(writer.view());
  wire::NameState names;
  Slots slots;
  read_slots(plan, reader, names, slots);
  reader.finish();
  return slots;
}

TEST(Decode, TwoTensorsAndANumberMakeTheStackOfAdd) {
  const Plan plan =
      plan_for(signature_of({tensor({2}, 0), tensor({2}, 1), of_kind(ValueKind::kScalarFloat)}, 2),
               "aten::add", "Tensor", {"self", "other", "alpha"});
  ASSERT_EQ(plan.refusal, "");
  wire::Writer writer;
  wire::NameState names;
  wire::encode_storage_slot(writer, names, 7, 0);
  wire::encode_storage_slot(writer, names, 5, 3);
  writer.f64(0.5);

  const Slots slots = read(plan, writer);
  std::vector<at::Tensor> tensors = {at::ones({2}), at::zeros({2})};
  torch::jit::Stack stack;
  build_stack(plan, slots, {tensors, {}, {}}, stack);

  EXPECT_THAT(slots.storages, ElementsAre(7, 5));
  EXPECT_THAT(slots.offsets, ElementsAre(0, 3));
  ASSERT_EQ(stack.size(), 3);
  EXPECT_EQ(stack[0].toTensor().sum().item<float>(), 2);
  EXPECT_EQ(stack[2].toDouble(), 0.5);
}

TEST(Decode, ASharedStorageIsNamedOnceAndEachViewHasItsOffset) {
  const Plan plan =
      plan_for(signature_of({tensor({2}, 0), tensor({2}, 0), of_kind(ValueKind::kScalarInt)}, 1),
               "aten::add", "Tensor", {"self", "other", "alpha"});
  wire::Writer writer;
  wire::NameState names;
  wire::encode_storage_slot(writer, names, 9, 1);
  writer.varint(4);
  writer.zigzag(-2);

  const Slots slots = read(plan, writer);

  EXPECT_THAT(slots.storages, ElementsAre(9));
  EXPECT_THAT(slots.offsets, ElementsAre(1, 4));
  EXPECT_EQ(slots.numbers[0].as<int64_t>(), -2);
}

TEST(Decode, ATensorAgainIsTheSameObjectWithoutASlotOfItsOwn) {
  const Plan plan = plan_for(
      signature_of({tensor({2}, 0), tensor({2}, 1), of_kind(ValueKind::kScalarInt), again(0)}, 2),
      "aten::add", "out", {"self", "other", "alpha", "out"});
  wire::Writer writer;
  wire::NameState names;
  wire::encode_storage_slot(writer, names, 1, 0);
  wire::encode_storage_slot(writer, names, 2, 0);
  writer.zigzag(1);

  const Slots slots = read(plan, writer);
  std::vector<at::Tensor> tensors = {at::ones({2}), at::ones({2})};
  torch::jit::Stack stack;
  build_stack(plan, slots, {tensors, {}, {}}, stack);

  EXPECT_TRUE(stack[0].toTensor().is_same(stack[3].toTensor()));
  EXPECT_TRUE(plan.tensors[0].is_read);
  EXPECT_TRUE(plan.tensors[0].is_written);
  EXPECT_FALSE(plan.tensors[1].is_written);
}

TEST(Decode, ArgumentsAreMatchedByNameWhateverTheirOrder) {
  const Plan plan =
      plan_for(signature_of({of_kind(ValueKind::kScalarInt), tensor({2}, 0), tensor({2}, 1)}, 2),
               "aten::add", "Tensor", {"alpha", "self", "other"});

  ASSERT_EQ(plan.refusal, "");
  EXPECT_EQ(plan.arguments[0].kind, RecipeKind::kTensor);
  EXPECT_EQ(plan.arguments[2].kind, RecipeKind::kInt);
}

TEST(Decode, AnArgumentTheClientLacksTakesTheServersDefault) {
  const Plan plan = plan_for(signature_of({tensor({2}, 0), tensor({2}, 1)}, 2), "aten::add",
                             "Tensor", {"self", "other"});

  ASSERT_EQ(plan.refusal, "");
  EXPECT_EQ(plan.arguments[2].constant.toInt(), 1);
}

TEST(Decode, AnArgumentTheServerLacksMustBeADefault) {
  wire::Signature signature = signature_of({tensor({2}, 0), of_kind(ValueKind::kTrue)}, 1);
  EXPECT_THAT(plan_for(signature, "aten::relu", "", {"self", "newfangled"}).refusal,
              HasSubstr("argument newfangled is not known to this server's torch"));

  signature.defaults = {1};
  EXPECT_EQ(plan_for(signature, "aten::relu", "", {"self", "newfangled"}).refusal, "");
}

// The server plays a version of `add` without `alpha`.
TEST(Decode, AnArgumentThatTheClaimedSchemaLacksMustBeADefaultToo) {
  const auto claimed =
      torch::jit::parseSchema("aten::add.Tensor(Tensor self, Tensor other) -> Tensor");
  Callee callee;
  callee.schema = &schema_of("aten::add", "Tensor");
  callee.claimed = &claimed;
  callee.arguments = {"self", "other", "alpha"};
  wire::Signature signature =
      signature_of({tensor({2}, 0), tensor({2}, 1), of_kind(ValueKind::kScalarInt)}, 2);
  EXPECT_THAT(make_plan(signature, callee, c10::Device(c10::kCPU)).refusal,
              HasSubstr("argument alpha is not known to this server's torch"));

  signature.defaults = {2};
  const Plan plan = make_plan(signature, callee, c10::Device(c10::kCPU));
  ASSERT_EQ(plan.refusal, "");
  EXPECT_EQ(plan.arguments[2].kind, RecipeKind::kConstant);
  EXPECT_EQ(plan.arguments[2].constant.toInt(), 1);
}

TEST(Decode, AValueOfAnotherTypeThanTheSchemasIsRefused) {
  const Plan plan =
      plan_for(signature_of({of_kind(ValueKind::kTrue)}, 0), "aten::relu", "", {"self"});

  EXPECT_THAT(plan.refusal, HasSubstr("argument self"));
}

// PyTorch's kernels use these integers of the stack as table indices. Found by session_fuzz.
TEST(Decode, AnIntegerInThePlaceOfADtypeLayoutOrFormatIsRefused) {
  const std::vector<std::string> names = {"self",   "dtype",      "layout",
                                          "device", "pin_memory", "memory_format"};
  Value integer = of_kind(ValueKind::kInt);
  integer.integer = 1'000'000'000;
  for (const size_t place : {size_t{1}, size_t{2}, size_t{5}}) {
    std::vector<Value> arguments(names.size(), of_kind(ValueKind::kNone));
    arguments[0] = tensor({2}, 0);
    ASSERT_EQ(plan_for(signature_of(arguments, 1), "aten::empty_like", "", names).refusal, "");
    arguments[place] = integer;
    EXPECT_THAT(plan_for(signature_of(arguments, 1), "aten::empty_like", "", names).refusal,
                HasSubstr("argument " + names[place]));
  }
}

TEST(Decode, ADtypeInThePlaceOfAnIntegerIsRefused) {
  Value dtype = of_kind(ValueKind::kDtype);
  const Plan plan = plan_for(signature_of({tensor({2}, 0), dtype, dtype}, 1), "aten::transpose",
                             "int", {"self", "dim0", "dim1"});
  EXPECT_THAT(plan.refusal, HasSubstr("argument dim0"));
}

TEST(Decode, OutArgumentsAreWrittenAndNotRead) {
  const Plan plan = plan_for(signature_of({tensor({2}, 0), tensor({2}, 1)}, 2), "aten::relu", "out",
                             {"self", "out"});

  ASSERT_EQ(plan.refusal, "");
  EXPECT_TRUE(plan.tensors[0].is_read);
  EXPECT_FALSE(plan.tensors[0].is_written);
  EXPECT_FALSE(plan.tensors[1].is_read);
  EXPECT_TRUE(plan.tensors[1].is_written);
}

TEST(Decode, SelfOfAnInPlaceOperatorIsReadUnlessItIsOverwritten) {
  const Plan relu = plan_for(signature_of({tensor({2}, 0)}, 1), "aten::relu_", "", {"self"});
  EXPECT_TRUE(relu.tensors[0].is_read);
  EXPECT_TRUE(relu.tensors[0].is_written);

  const Plan zero = plan_for(signature_of({tensor({2}, 0)}, 1), "aten::zero_", "", {"self"}, true);
  EXPECT_FALSE(zero.tensors[0].is_read);
}

TEST(Decode, TensorListsMayHoldNothing) {
  Value indices = of_kind(ValueKind::kList);
  indices.items = {of_kind(ValueKind::kNone), tensor({3}, 1)};
  const Plan plan = plan_for(signature_of({tensor({2, 3}, 0), indices}, 2), "aten::index", "Tensor",
                             {"self", "indices"});
  ASSERT_EQ(plan.refusal, "");
  Slots slots;
  std::vector<at::Tensor> tensors = {at::ones({2, 3}), at::ones({3})};
  torch::jit::Stack stack;

  build_stack(plan, slots, {tensors, {}, {}}, stack);

  const auto list = stack[1].toOptionalTensorList();
  EXPECT_FALSE(list.get(0).has_value());
  EXPECT_TRUE(list.get(1)->defined());
}

TEST(Decode, AListOfEqualNumbersTravelsAsOne) {
  Value list = of_kind(ValueKind::kScalarList);
  list.integers = {static_cast<int64_t>(ValueKind::kScalarFloat),
                   static_cast<int64_t>(ValueKind::kScalarFloat)};
  Value tensors = of_kind(ValueKind::kList);
  tensors.items = {tensor({2}, 0), tensor({2}, 1)};
  const Plan plan = plan_for(signature_of({tensors, list}, 2), "aten::_foreach_mul", "ScalarList",
                             {"self", "scalars"});
  ASSERT_EQ(plan.refusal, "");
  wire::Writer writer;
  wire::NameState names;
  wire::encode_storage_slot(writer, names, 1, 0);
  wire::encode_storage_slot(writer, names, 2, 0);
  writer.u8(1);
  writer.f64(3);

  const Slots slots = read(plan, writer);

  ASSERT_EQ(slots.numbers.size(), 2);
  EXPECT_EQ(slots.numbers[1].as<double>(), 3);
}

TEST(Decode, AHostScalarKeepsItsBytesAndItsWrappedMark) {
  Value scalar = of_kind(ValueKind::kScalarTensor);
  scalar.spec.dtype = wire::Dtype::kInt64;
  scalar.spec.wrapped = true;
  const Plan plan =
      plan_for(signature_of({tensor({2}, 0), scalar}, 1), "aten::mul", "Tensor", {"self", "other"});
  wire::Writer writer;
  wire::NameState names;
  wire::encode_storage_slot(writer, names, 1, 0);
  writer.u64(41);
  std::vector<at::Tensor> tensors = {at::ones({2})};
  torch::jit::Stack stack;

  build_stack(plan, read(plan, writer), {tensors, {}, {}}, stack);

  EXPECT_EQ(stack[1].toTensor().item<int64_t>(), 41);
  EXPECT_TRUE(stack[1].toTensor().unsafeGetTensorImpl()->is_wrapped_number());
}

TEST(Decode, FlagsThatADtypeCannotHaveAreAProtocolError) {
  wire::TensorSpec spec;
  spec.conj = true;
  EXPECT_THROW(make_tensor_recipe(spec), ProtocolError);
  spec = {};
  spec.wrapped = true;
  spec.sizes = {2};
  spec.strides = {1};
  EXPECT_THROW(make_tensor_recipe(spec), ProtocolError);
}

TEST(Decode, OnlyViewsWithoutGapsOrOverlapsAreDense) {
  wire::TensorSpec spec;
  spec.sizes = {2, 3};
  spec.strides = {1, 2};
  EXPECT_TRUE(make_tensor_recipe(spec).is_dense);
  spec.strides = {4, 1};
  EXPECT_FALSE(make_tensor_recipe(spec).is_dense);
  spec.strides = {3, 0};
  EXPECT_FALSE(make_tensor_recipe(spec).is_dense);
}

}  // namespace
}  // namespace torch_remote::marshal
