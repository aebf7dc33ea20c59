#include "server/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace torch_remote::server {
namespace {

using testing::HasSubstr;

std::string refusal_of(const char* name, const char* overload = "") {
  return find_operator({name, overload, {}}).callee.refusal;
}

TEST(Operators, WhatTouchesFilesStoragesOrRawMemoryIsRefused) {
  for (const char* name : {"aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_",
                           "aten::_resize_output_", "aten::as_strided", "aten::_reshape_alias",
                           "aten::_reshape_alias_copy", "aten::_nested_view_from_jagged_copy",
                           "aten::as_strided_", "aten::from_file", "aten::_pin_memory",
                           "aten::record_stream", "aten::_sparse_coo_tensor_unsafe",
                           "aten::fbgemm_linear_fp16_weight", "aten::_print", "aten::resize"}) {
    EXPECT_NE(refuse_operator(name), "") << name;
  }
}

TEST(Operators, OrdinaryOperatorsAreNot) {
  for (const char* name :
       {"aten::add", "aten::as_strided_scatter", "aten::_cudnn_init_dropout_state",
        "aten::_local_scalar_dense", "aten::item", "aten::copy_", "aten::setdiff"}) {
    EXPECT_EQ(refuse_operator(name), "") << name;
  }
}

TEST(Operators, OtherNamespacesAreToldAboutLibraries) {
  EXPECT_THAT(refuse_operator("torchvision::nms"), HasSubstr("serve --library"));
  EXPECT_THAT(refuse_operator("prim::Print"), HasSubstr("serve --library"));
  EXPECT_THAT(refuse_operator(""), HasSubstr("serve --library"));
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
  EXPECT_TRUE(find_operator({"aten::native_dropout", "", {}}).is_seeded);
  EXPECT_FALSE(find_operator({"aten::add", "Tensor", {}}).is_seeded);
  EXPECT_TRUE(find_operator({"aten::fill_", "Scalar", {}}).callee.overwrites_self);
}

TEST(Operators, TheDigestIsTheSameEachTime) {
  EXPECT_EQ(operators_digest(), operators_digest());
}

}  // namespace
}  // namespace torch_remote::server
