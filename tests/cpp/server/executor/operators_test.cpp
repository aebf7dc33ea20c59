#include "server/executor/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of(const char* name, const char* overload = "") {
  return OperatorTable().find({name, overload, {}}).callee.refusal;
}

TEST(Operators, WhatTouchesFilesStoragesOrRawMemoryIsRefused) {
  for (const char* name : {"aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_",
                           "aten::_resize_output_", "aten::as_strided", "aten::_reshape_alias",
                           "aten::_reshape_alias_copy", "aten::_nested_view_from_jagged_copy",
                           "aten::_nested_from_padded", "aten::_nested_tensor_from_mask",
                           "aten::as_strided_", "aten::from_file", "aten::_pin_memory",
                           "aten::record_stream", "aten::_sparse_coo_tensor_unsafe",
                           "aten::fbgemm_linear_fp16_weight", "aten::_print", "aten::resize"})
    EXPECT_NE(refuse_operator(name), "") << name;
}

TEST(Operators, OrdinaryOperatorsAreNot) {
  for (const char* name :
       {"aten::add", "aten::as_strided_scatter", "aten::_cudnn_init_dropout_state",
        "aten::_local_scalar_dense", "aten::item", "aten::copy_", "aten::setdiff"})
    EXPECT_EQ(refuse_operator(name), "") << name;
}

TEST(Operators, OtherNamespacesAreToldAboutLibraries) {
  EXPECT_THAT(refusal_of("torchvision::nms"),
              AllOf(HasSubstr("serve --library"), HasSubstr("torchvision")));
  EXPECT_THAT(refusal_of("prim::Print"), HasSubstr("serve --library"));
  EXPECT_THAT(refusal_of("quantized::add"), HasSubstr("serve --library"));
  EXPECT_THAT(refusal_of(""), HasSubstr("serve --library"));
}

TEST(Operators, AnUnknownOperatorOrOverloadSaysSo) {
  EXPECT_THAT(refusal_of("aten::no_such_thing"), HasSubstr("not known to this server's torch"));
  EXPECT_THAT(refusal_of("aten::add", "no_such"), HasSubstr("not known to this server's torch"));
}

TEST(Operators, ASchemaWithAStorageOrAStreamIsRefused) {
  EXPECT_NE(refusal_of("aten::set_", "source_Storage"), "");
  EXPECT_NE(refusal_of("aten::record_stream"), "");
}

TEST(Operators, RandomOperatorsAreKnownAsSuch) {
  EXPECT_TRUE(OperatorTable().find({"aten::native_dropout", "", {}}).is_seeded);
  EXPECT_FALSE(OperatorTable().find({"aten::add", "Tensor", {}}).is_seeded);
  EXPECT_TRUE(OperatorTable().find({"aten::fill_", "Scalar", {}}).callee.overwrites_self);
}

TEST(Operators, AnOperatorOfALibraryMayBeCalled) {
  const OperatorTable table({{"quantized::add", ""}}, std::nullopt);
  EXPECT_EQ(table.find({"quantized::add", "", {}}).callee.refusal, "");
  EXPECT_THAT(table.find({"quantized::mul", "", {}}).callee.refusal, HasSubstr("serve --library"));
  EXPECT_THAT(table.find({"aten::set_", "", {}}).callee.refusal, HasSubstr("may not be called"));
  EXPECT_EQ(table.fingerprints().size(), OperatorTable().fingerprints().size() + 1);
  EXPECT_EQ(table.digest(), OperatorTable().digest());
}

// A server that plays a version whose `add` has no `alpha`, and `mul` one argument more.
SchemaFile another_version() {
  return {
      "2.0.0",
      {"aten::add.Tensor(Tensor self, Tensor other) -> Tensor",
       "aten::mul.Tensor(Tensor self, Tensor other, *, int extra=3) -> Tensor",
       "aten::gone(Tensor self) -> Tensor", "aten::sub.Tensor(Tensor self, Dimension x) -> Tensor",
       "aten::set_(Tensor(a!) self) -> Tensor(a!)"}};
}

TEST(Operators, AServerThatPlaysAnotherVersionHasThatVersionsOperators) {
  const OperatorTable table({}, another_version());
  EXPECT_EQ(table.torch_version(), "2.0.0");
  EXPECT_NE(table.digest(), OperatorTable().digest());
  EXPECT_EQ(table.fingerprints().size(), 4U);  // set_ may not be called
  EXPECT_TRUE(table.describe({"aten::add", "Tensor"}).is_known);
  EXPECT_THAT(table.describe({"aten::add", "Tensor"}).arguments, ElementsAre("self", "other"));
  EXPECT_THAT(table.describe({"aten::mul", "Tensor"}).arguments, ElementsAre("self", "other"));
  EXPECT_THAT(table.describe({"aten::div", "Tensor"}).reason,
              HasSubstr("not known to this server's torch 2.0.0"));
  EXPECT_THAT(table.describe({"aten::gone", ""}).reason, HasSubstr("not known"));
  EXPECT_THAT(table.describe({"aten::sub", "Tensor"}).reason, HasSubstr("cannot read"));
}

TEST(Operators, WithoutAnythingClaimedAllArgumentsAreKnown) {
  EXPECT_THAT(OperatorTable().describe({"aten::add", "Tensor"}).arguments,
              ElementsAre("self", "other", "alpha"));
}

}  // namespace
}  // namespace torch_remote::server
