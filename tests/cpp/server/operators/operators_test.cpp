#include "server/operators/operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/operators/operator_list.h"

namespace torch_remote::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string refusal_of(const char* name, const char* overload = "") {
  return OperatorTable().find({name, overload, {}}).callee.refusal;
}

TEST(Operators, ANameOver256BytesIsNoOperatorAndIsNotKept) {
  const OperatorTable table;
  for (const std::string& name : {"aten::" + std::string(60'000, 'x'), std::string(60'000, 'x')}) {
    const Operator found = table.find({name, "", {}});
    EXPECT_FALSE(found.handle.has_value());
    EXPECT_LT(found.name.size() + found.callee.refusal.size(), 1000);
    EXPECT_LT(table.describe({name, ""}).reason.size(), 1000);
  }
  EXPECT_FALSE(table.find({"aten::add", std::string(300, 'x'), {}}).handle.has_value());
}

std::optional<c10::OperatorHandle> operation_named(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == name.npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
}

std::string refusal_by_name(const std::string& name) {
  const auto operation = operation_named(name);
  return refuse_operator(name, operation ? &*operation : nullptr);
}

// Promise 4.
TEST(Operators, WhatTouchesFilesStoragesOrRawMemoryIsRefused) {
  for (const char* name : {"aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_",
                           "aten::_resize_output_", "aten::as_strided", "aten::_reshape_alias",
                           "aten::_reshape_alias_copy", "aten::_nested_view_from_jagged_copy",
                           "aten::_nested_from_padded", "aten::_nested_tensor_from_mask",
                           "aten::as_strided_", "aten::from_file", "aten::_pin_memory",
                           "aten::record_stream", "aten::_sparse_coo_tensor_unsafe", "aten::_print",
                           "aten::resize", "aten::set_.source_Storage"})
    EXPECT_THAT(refusal_by_name(name), HasSubstr("may not be called by a client: ")) << name;
}

// Promise 4.
TEST(Operators, WhatHasPointersOrPacksInItsTensorsIsRefused) {
  for (const char* name :
       {"aten::_wrapped_linear_prepack", "aten::_wrapped_quantized_linear_prepacked",
        "aten::fbgemm_linear_fp16_weight", "aten::fbgemm_pack_gemm_matrix_fp16",
        "aten::fbgemm_pack_quantized_matrix.KN", "aten::quantized_gru_cell",
        "aten::mkldnn_reorder_conv2d_weight", "aten::_cslt_compress"})
    EXPECT_EQ(refusal_by_name(name),
              "may not be called by a client: its tensors hold packed objects or pointers in their "
              "bytes")
        << name;
}

TEST(Operators, OrdinaryOperatorsAreNot) {
  for (const char* name :
       {"aten::add.Tensor", "aten::_cudnn_init_dropout_state", "aten::_local_scalar_dense",
        "aten::copy_", "aten::native_batch_norm", "aten::_fused_adam_.tensor_lr"})
    EXPECT_EQ(refusal_by_name(name), "") << name;
}

// Promise 4.
TEST(Operators, WhatIsNotInTheListIsRefusedUntilSomebodyHasReadIt) {
  for (const char* name : {"aten::of_a_later_torch", "aten::add.of_a_later_torch", "aten::add",
                           "aten::add.", "aten::add.Tensor out", "aten::", "add.Tensor", ""})
    EXPECT_THAT(refusal_by_name(name),
                AllOf(HasSubstr("is refused until somebody has read its kernel"),
                      HasSubstr("operator_list.txt")))
        << name;
}

// Promise 4.
TEST(Operators, WhatTheClientComposesOrDoesItselfIsRefusedWithThoseWords) {
  for (const char* name :
       {"aten::linear", "aten::scaled_dot_product_attention", "aten::empty.memory_format",
        "aten::add.Scalar", "aten::celu.out", "aten::_to_copy", "aten::select_scatter"})
    EXPECT_EQ(refusal_by_name(name),
              "may not be called by a client: the client composes it of other operators, or does "
              "it itself")
        << name;
}

// Promise 4. What the client would send is either in the list, or somebody must read it.
TEST(Operators, EveryOperatorThatAClientSendsIsListed) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string text = c10::toString(name);
    if (text.starts_with("aten::")) {
      EXPECT_THAT(refusal_by_name(text), Not(HasSubstr("until somebody has read"))) << text;
    }
  }
}

TEST(Operators, TheListSaysWhichKernelsTrustTheirArguments) {
  EXPECT_EQ(find_listed("aten::_embedding_bag_dense_backward").kind, OperatorClass::kUnchecked);
  EXPECT_EQ(find_listed("aten::mm").kind, OperatorClass::kRuns);
  EXPECT_EQ(find_listed("aten::dequantize.self").kind, OperatorClass::kRuns);
  EXPECT_EQ(find_listed("aten::dequantize.tensors").kind, OperatorClass::kRefused);
}

// Promise 4.
TEST(Operators, OutsideAtenNothingIsAllowedWithoutALibrary) {
  const OperatorTable table;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with("aten::"))
      continue;
    EXPECT_FALSE(table.find({name.name, name.overload_name, {}}).handle) << name;
  }
}

// Promise 4.
TEST(Operators, NoOperatorThatMayBeCalledTakesOrReturnsAnObject) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || !name.name.starts_with("aten::"))
      continue;
    const std::string text = c10::toString(handle->schema());
    const bool has_object =
        text.find("__torch__") != text.npos || text.find("Storage") != text.npos;
    if (!has_object)
      continue;
    EXPECT_NE(refusal_of(name.name.c_str(), name.overload_name.c_str()), "") << text;
  }
}

// Promise 4.
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

// Promise 4.
TEST(Operators, ASchemaWithAStorageOrAStreamIsRefused) {
  EXPECT_NE(refusal_of("aten::set_", "source_Storage"), "");
  EXPECT_NE(refusal_of("aten::record_stream"), "");
  // Also in a library, whose operators the list does not name.
  const OperatorTable library({{"aten::set_", "source_Storage"}, {"aten::record_stream", ""}},
                              std::nullopt);
  EXPECT_EQ(library.find({"aten::set_", "source_Storage", {}}).callee.refusal,
            "takes a Storage, which cannot be sent");
  EXPECT_EQ(library.find({"aten::record_stream", "", {}}).callee.refusal,
            "takes a Stream, which cannot be sent");
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
  const OperatorTable aten_too({{"aten::_print", ""}}, std::nullopt);
  EXPECT_EQ(aten_too.find({"aten::_print", "", {}}).callee.refusal, "");
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
  EXPECT_EQ(table.fingerprints().size(), 3U);  // set_ and gone may not be called
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
