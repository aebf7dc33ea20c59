#include "client/shapes/infer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using wire::OutputKind;

using Sizes = std::vector<int64_t>;

// A tensor that looks remote. Nothing here reads a record or memory: what is asked is metadata.
at::Tensor remote(const Sizes& sizes, const Sizes& strides, at::ScalarType dtype = at::kFloat) {
  const c10::Device device(c10::kPrivateUse1, 0);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, c10::DataPtr(nullptr, device));
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

const OperatorInfo& operator_named(const char* name, const char* overload = "") {
  return operator_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

Inference infer_call(const OperatorInfo& info, const std::vector<c10::IValue>& arguments) {
  std::vector<const at::TensorImpl*> mentioned;
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined())
      mentioned.push_back(argument.toTensor().unsafeGetTensorImpl());
  return infer(info, arguments, mentioned);
}

std::string error_of(const OperatorInfo& info, const std::vector<c10::IValue>& arguments) {
  try {
    infer_call(info, arguments);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "(no error)";
}

TEST(Infer, PyTorchsShapeCodeBroadcastsAndPromotes) {
  const Inference told =
      infer_call(operator_named("aten::add", "Tensor"),
                 {remote({2, 1}, {1, 1}), remote({3}, {1}, at::kDouble), at::Scalar(1)});
  ASSERT_EQ(told.result, Inferred::kKnown);
  EXPECT_NE(told.by, InferenceSource::kPython);
  ASSERT_EQ(told.outputs.size(), 1U);
  EXPECT_EQ(told.outputs[0].kind, OutputKind::kFresh);
  EXPECT_THAT(told.outputs[0].spec.sizes, ElementsAre(2, 3));
  EXPECT_THAT(told.outputs[0].spec.strides, ElementsAre(3, 1));
  EXPECT_EQ(marshal::from_wire(told.outputs[0].spec.dtype), at::kDouble);
}

TEST(Infer, ADenseLayoutIsKept) {
  const Inference told = infer_call(operator_named("aten::relu"), {remote({2, 3}, {1, 2})});
  ASSERT_EQ(told.result, Inferred::kKnown);
  EXPECT_THAT(told.outputs[0].spec.strides, ElementsAre(1, 2));
}

TEST(Infer, WhatIsWrittenInPlaceComesBackAsTheArgument) {
  const Inference told = infer_call(operator_named("aten::add_", "Tensor"),
                                    {remote({2}, {1}), remote({2}, {1}), at::Scalar(1)});
  ASSERT_EQ(told.result, Inferred::kKnown);
  ASSERT_EQ(told.outputs.size(), 1U);
  EXPECT_EQ(told.outputs[0].kind, OutputKind::kTensor);
  EXPECT_EQ(told.outputs[0].tensor, 0U);
}

TEST(Infer, AnOutThatFitsComesBackAsTheArgument) {
  const Inference told =
      infer_call(operator_named("aten::mm", "out"),
                 {remote({2, 3}, {3, 1}), remote({3, 4}, {4, 1}), remote({2, 4}, {4, 1})});
  ASSERT_EQ(told.result, Inferred::kKnown);
  ASSERT_EQ(told.outputs.size(), 1U);
  EXPECT_EQ(told.outputs[0].kind, OutputKind::kTensor);
  EXPECT_EQ(told.outputs[0].tensor, 2U);
}

TEST(Infer, SeveralOutputsAreToldInOrder) {
  const Inference told =
      infer_call(operator_named("aten::max", "dim"), {remote({2, 3}, {3, 1}), int64_t{1}, true});
  ASSERT_EQ(told.result, Inferred::kKnown);
  ASSERT_EQ(told.outputs.size(), 2U);
  for (const wire::Output& output : told.outputs)
    EXPECT_THAT(output.spec.sizes, ElementsAre(2, 1));
  EXPECT_EQ(marshal::from_wire(told.outputs[0].spec.dtype), at::kFloat);
  EXPECT_EQ(marshal::from_wire(told.outputs[1].spec.dtype), at::kLong);
}

TEST(Infer, WrongSizesRaiseWhatTheLocalCallRaises) {
  EXPECT_THAT(
      error_of(operator_named("aten::mm"), {remote({2, 3}, {3, 1}), remote({2, 3}, {3, 1})}),
      HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"));
  EXPECT_THAT(error_of(operator_named("aten::add", "Tensor"),
                       {remote({2}, {1}), remote({3}, {1}), at::Scalar(1)}),
              HasSubstr("must match the size of tensor b (3)"));
}

TEST(Infer, WithoutShapeCodeOnlyTheServerKnows) {
  const Inference told = infer_call(operator_named("aten::histc"),
                                    {remote({4}, {1}), int64_t{10}, at::Scalar(0), at::Scalar(1)});
  EXPECT_EQ(told.result, Inferred::kUnknown);
  EXPECT_TRUE(told.outputs.empty());
}

TEST(Operator, WhereDataDecidesWhatComesOutTheServerIsAskedEachTime) {
  EXPECT_TRUE(operator_named("aten::nonzero").depends_on_data);
  EXPECT_FALSE(operator_named("aten::relu").depends_on_data);
}

TEST(Operator, TheTargetOfOutIsWrittenAndNoFreshOutput) {
  const OperatorInfo& info = operator_named("aten::mm", "out");
  EXPECT_THAT(info.out_arguments, ElementsAre(2));
  EXPECT_FALSE(info.has_fresh_outputs);
  EXPECT_TRUE(info.arguments[2].is_written);
  EXPECT_FALSE(info.arguments[0].is_written);
}

}  // namespace
}  // namespace torch_remote::client
