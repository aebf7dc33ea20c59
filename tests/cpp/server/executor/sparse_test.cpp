#include "server/executor/sparse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/support.h"

// Note [Sparse arguments are checked]: a kernel reads and writes at the indices of its argument.
namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using wire::Layout;
using wire::ResultKind;
using wire::SparseSpec;
using wire::ValueKind;

constexpr uint64_t kIndices = 1, kPlain = 2, kValues = 3, kFirst = 20;

// The bytes of these integers, for FrameText::store().
std::vector<float> bytes_of(const std::vector<int64_t>& integers) {
  std::vector<float> floats(integers.size() * 2);
  std::memcpy(floats.data(), integers.data(), integers.size() * sizeof(int64_t));
  return floats;
}

wire::TensorSpec integers(std::vector<int64_t> sizes) {
  return spec(std::move(sizes), wire::Dtype::kInt64);
}

// A call of `name` with a COO tensor of two elements and (2, 3) as its only argument.
SignatureText coo_call(const std::string& name, bool is_coalesced = false) {
  SignatureText text(0, 0, name, "");
  text.sparse("self", {Layout::kSparseCoo, is_coalesced, {2, 3}});
  text.part(integers({2, 2}), 0).part(spec({2}), 1);
  return text;
}

Reply run_coo(Server& server, const SignatureText& text, const std::vector<int64_t>& indices) {
  server.apply(
      FrameText().store(kIndices, bytes_of(indices)).store(kValues, {1, 2}).signature(text));
  auto replies =
      server.apply(FrameText().query_call(9, 0, kFirst, 9).storage(kIndices).storage(kValues));
  return std::move(replies.at(0));
}

std::vector<wire::Result> results_of(const Reply& reply) {
  EXPECT_FALSE(reply.failed) << reply.error.message;
  wire::Reader reader(reply.body);
  return wire::decode_results(reader);
}

SignatureText to_dense(SignatureText text) {
  text.value("dtype", ValueKind::kNone).value("masked_grad", ValueKind::kNone);
  return text;
}

TEST(Sparse, ASparseArgumentMakesASparseResult) {
  Server server;

  const auto results =
      results_of(run_coo(server, coo_call("aten::_coalesce"), {1, 1, 2, 2}));  // (1, 2) twice

  ASSERT_EQ(results.size(), 1);
  EXPECT_EQ(results[0].kind, ResultKind::kSparse);
  EXPECT_EQ(results[0].sparse, (SparseSpec{Layout::kSparseCoo, true, {2, 3}}));
  EXPECT_THAT(results[0].items.at(0).spec.sizes, ElementsAre(2, 1));
  EXPECT_THAT(server.read(kFirst + 1, results[0].items.at(1).spec).floats(), ElementsAre(3));
}

TEST(Sparse, AnIndexOutsideTheTensorFailsTheCallAndTheSessionGoesOn) {
  for (const int64_t index : {int64_t{2}, int64_t{-1}, int64_t{1} << 40, INT64_MIN}) {
    Server server;
    const Reply reply = run_coo(server, to_dense(coo_call("aten::_to_dense")), {0, index, 0, 0});
    EXPECT_TRUE(reply.failed) << index;
    EXPECT_FALSE(server.read(kValues, spec({2})).failed);
  }
}

TEST(Sparse, ATensorThatIsSaidToBeCoalescedAndIsNotGetsNoSuchFlag) {
  Server server;
  const auto results = results_of(run_coo(server, coo_call("aten::_coalesce", true), {1, 1, 2, 2}));
  EXPECT_THAT(results.at(0).items.at(0).spec.sizes, ElementsAre(2, 1));
}

TEST(Sparse, PartsWhoseSizesDoNotAgreeAreRefused) {
  const std::vector<std::pair<wire::TensorSpec, wire::TensorSpec>> wrong = {
      {integers({2, 2}), spec({1})},  // another number of elements
      {integers({3, 1}), spec({1})},  // more sparse dimensions than dimensions
      {integers({1, 2}), spec({2})},  // a dense dimension that the values lack
      {integers({4}), spec({2})},     // indices of one dimension
      {spec({2, 2}), spec({2})},      // indices that are no integers
  };
  for (const auto& [indices, values] : wrong) {
    Server server;
    SignatureText text(0, 0, "aten::_coalesce", "");
    text.sparse("self", {Layout::kSparseCoo, false, {2, 3}}).part(indices, 0).part(values, 1);
    EXPECT_TRUE(run_coo(server, text, {0, 0, 0, 0}).failed) << indices.sizes.size();
  }
}

TEST(Sparse, CompressedIndicesOutsideTheTensorFailTheCall) {
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> cases = {
      {{0, 1, 2}, {0, 2}},   // good
      {{0, 2, 2}, {2, 0}},   // good, though not in order: products of MKL are so
      {{0, 1, 2}, {0, 3}},   // a column that is not there
      {{0, 9, 2}, {0, 2}},   // a row that ends behind the last element
      {{0, 1, 99}, {0, 2}},  // more elements than there are
      {{-5, 1, 2}, {0, 2}}, {{0, 2, 1}, {0, 2}},         {{0, INT64_MAX, 2}, {0, 2}},
      {{0, 1, 2}, {0, -1}}, {{0, 1, 2}, {0, INT64_MIN}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    Server server;
    SignatureText text(0, 0, "aten::_to_dense", "");
    text.sparse("self", {Layout::kSparseCsr, false, {2, 3}});
    text.part(integers({3}), 0).part(integers({2}), 1).part(spec({2}), 2);
    server.apply(FrameText()
                     .store(kIndices, bytes_of(cases[i].first))
                     .store(kPlain, bytes_of(cases[i].second))
                     .store(kValues, {1, 2})
                     .signature(to_dense(text)));
    const auto replies = server.apply(
        FrameText().query_call(9, 0, kFirst, 9).storage(kIndices).storage(kPlain).storage(kValues));
    EXPECT_EQ(replies.at(0).failed, i > 1) << i;
  }
}

TEST(Sparse, CompressedPartsWhoseSizesDoNotAgreeAreRefused) {
  struct Wrong {
    Layout layout;
    std::vector<int64_t> sizes;
    wire::TensorSpec compressed, plain, values;
  };

  wire::TensorSpec apart = integers({2});
  apart.strides = {2};
  const std::vector<Wrong> wrong = {
      {Layout::kSparseCsr, {2, 3}, integers({2}), integers({2}), spec({2})},
      {Layout::kSparseCsr, {3, 3}, integers({3}), integers({2}), spec({2})},
      {Layout::kSparseCsr, {2, 3}, integers({3}), integers({2}), spec({1})},
      {Layout::kSparseCsr, {2, 3}, integers({3}), integers({2}), spec({})},
      {Layout::kSparseCsr, {2}, integers({3}), integers({2}), spec({2})},
      {Layout::kSparseCsr, {}, integers({3}), integers({2}), spec({2})},
      {Layout::kSparseCsr, {2, 3}, integers({}), integers({}), spec({})},
      {Layout::kSparseCsr, {2, 3, 1}, integers({3}), integers({2}), spec({2})},
      {Layout::kSparseCsr, {1, 2, 3}, integers({1, 3}), integers({2}), spec({2})},
      {Layout::kSparseCsr, {2, 3}, integers({3}), apart, spec({2})},
      {Layout::kSparseCsr, {2, 3}, spec({3}), integers({2}), spec({2})},
      {Layout::kSparseBsr, {2, 3}, integers({3}), integers({2}), spec({2})},
      {Layout::kSparseBsr, {2, 3}, integers({3}), integers({2}), spec({2, 1, 0})},
      {Layout::kSparseBsr, {2, 3}, integers({3}), integers({1}), spec({1, 1, 2})},
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    Server server;
    SignatureText text(0, 0, "aten::_to_dense", "");
    text.sparse("self", {wrong[i].layout, false, wrong[i].sizes});
    text.part(wrong[i].compressed, 0).part(wrong[i].plain, 1).part(wrong[i].values, 2);
    server.apply(FrameText()
                     .store(kIndices, bytes_of({0, 1, 2}))
                     .store(kPlain, bytes_of({0, 0, 0}))
                     .store(kValues, {1, 2})
                     .signature(to_dense(text)));
    const auto replies = server.apply(
        FrameText().query_call(9, 0, kFirst, 9).storage(kIndices).storage(kPlain).storage(kValues));
    EXPECT_TRUE(replies.at(0).failed) << i;
  }
}

TEST(Sparse, ARewrittenArgumentIsToldWithItsNewParts) {
  Server server;

  const auto results = results_of(run_coo(server, coo_call("aten::zero_"), {0, 1, 0, 2}));

  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].kind, ResultKind::kSparseTensor);
  const wire::Result& rewritten = results[1].items.at(0);
  EXPECT_EQ(rewritten.kind, ResultKind::kRewritten);
  EXPECT_THAT(rewritten.items.at(1).spec.sizes, ElementsAre(0));
}

TEST(Sparse, ACallWhoseOutputsAreKnownMayNotRewriteASparseTensor) {
  Server server;
  SignatureText zero = coo_call("aten::zero_");
  wire::Output output;
  zero.outputs({output});
  server.apply(
      FrameText().store(kIndices, bytes_of({0, 1, 0, 2})).store(kValues, {1, 2}).signature(zero));

  const auto replies =
      server.apply(FrameText().checked_call(9, 0).storage(kIndices).storage(kValues));

  EXPECT_TRUE(replies.at(0).failed);
  EXPECT_THAT(server.read(kValues, spec({2})).floats(), ElementsAre(1, 2));
}

TEST(Sparse, ACallThatWritesTheMemoryOfIndicesIsRefused) {
  Server server;
  SignatureText values = coo_call("aten::zero_");  // both parts in one storage
  server.apply(FrameText().store(kIndices, bytes_of({0, 1, 0, 2})).signature(values));
  EXPECT_EQ(
      server.apply(FrameText().query_call(9, 0, kFirst, 9).storage(kIndices).storage(kIndices))
          .at(0)
          .error.kind,
      wire::ErrorKind::kRefused);

  SignatureText out(1, 1, "aten::mm", "out");
  out.sparse("self", {Layout::kSparseCoo, false, {2, 2}});
  out.part(integers({2, 2}), 0).part(spec({2}), 1);
  out.tensor("mat2", spec({2, 4}), 2).tensor("out", spec({2, 4}), 0);
  server.apply(
      FrameText().store(kValues, {1, 2}).store(4, std::vector<float>(8, 1)).signature(out));
  EXPECT_EQ(server
                .apply(FrameText()
                           .query_call(9, 1, kFirst, 9)
                           .storage(kIndices)
                           .storage(kValues)
                           .storage(4)
                           .offset(0))
                .at(0)
                .error.kind,
            wire::ErrorKind::kRefused);
}

TEST(Sparse, APartThatIsNotInsideItsStorageIsRefused) {
  Server server;
  server.apply(FrameText()
                   .store(kIndices, bytes_of({0, 0}))
                   .store(kValues, {1, 2})
                   .signature(coo_call("aten::_coalesce")));
  const auto replies =
      server.apply(FrameText().query_call(9, 0, kFirst, 9).storage(kIndices).storage(kValues));
  EXPECT_EQ(replies.at(0).error.kind, wire::ErrorKind::kRefused);
}

}  // namespace
}  // namespace torch_remote::server::testing
