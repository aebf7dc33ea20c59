#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "../session_fixture.h"
#include "base/error.h"
#include "client/call/results.h"

namespace torch_remote::client {
namespace {

using ::testing::HasSubstr;
using wire::Dtype;

wire::Result fresh(std::vector<int64_t> sizes, Dtype dtype = Dtype::kInt64) {
  wire::Result result;
  result.kind = wire::ResultKind::kFresh;
  result.spec.dtype = dtype;
  result.spec.strides = wire::contiguous_strides(sizes);
  result.spec.sizes = std::move(sizes);
  result.nbytes = wire::extent_bytes(result.spec);
  return result;
}

// A server whose device has 1 MiB.
class ResultBoundsTest : public testing::SessionTest {
 protected:
  void SetUp() override {
    wire::Welcome welcome = testing::a_welcome();
    welcome.devices.at(0).total_memory = 1 << 20;
    transport::Stream& stream = server.stream();
    testing::send_block(
        stream, testing::body_of(testing::server_hello("", testing::read_client_hello(stream))));
    wire::decode_proof(testing::read_block(stream));
    testing::send_block(stream, testing::body_of(welcome));
    server.start();
    session.welcome();
  }

  std::string check(const char* name, const char* overload, std::vector<c10::IValue> arguments,
                    const std::vector<wire::Result>& results) {
    const OperatorInfo& info =
        operator_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
    const auto signature = c10::make_intrusive<Signature>();
    const Capture capture;
    try {
      check_results({info, *signature, capture, arguments, c10::kCPU, {&session, 0}, 1}, results);
    } catch (const ProtocolError& error) {
      return error.what();
    }
    return "(accepted)";
  }

  std::string nonzero(const wire::Result& result) {
    return check("aten::nonzero", "", {at::zeros({3, 4})}, {result});
  }
};

// Promise 7b.
TEST_F(ResultBoundsTest, NonzeroGivesAtMostOneRowForEachElement) {
  EXPECT_EQ(nonzero(fresh({12, 2})), "(accepted)");
  EXPECT_EQ(nonzero(fresh({0, 2})), "(accepted)");
  EXPECT_THAT(nonzero(fresh({13, 2})), HasSubstr("26 elements, and at most 24 are possible"));
  EXPECT_THAT(nonzero(fresh({24})), HasSubstr("1 dimensions"));
  EXPECT_THAT(nonzero(fresh({12, 2}, Dtype::kFloat32)), HasSubstr("another dtype"));
}

// Promise 7b.
TEST_F(ResultBoundsTest, AStorageOrAnExpandedViewDoesNotHideWhatIsTooLarge) {
  wire::Result result = fresh({12, 2});
  result.nbytes = uint64_t{1} << 40;
  EXPECT_THAT(nonzero(result), HasSubstr("bytes, and at most"));
  result = fresh({12, 2});
  result.spec.sizes = {int64_t{1} << 62, 2};
  result.spec.strides = {0, 0};
  EXPECT_THAT(nonzero(result), HasSubstr("elements, and at most 24"));
}

// Promise 7b.
TEST_F(ResultBoundsTest, EachOperatorHasItsOwnBound) {
  const at::Tensor x = at::zeros({3, 1});
  const at::Tensor mask = at::zeros({1, 4}, at::kBool);
  const auto select = [&](int64_t n) {
    return check("aten::masked_select", "", {x, mask}, {fresh({n}, Dtype::kFloat32)});
  };
  EXPECT_EQ(select(12), "(accepted)");
  EXPECT_THAT(select(13), HasSubstr("at most 12"));

  const at::Tensor rows = at::zeros({3}, at::kBool);
  const c10::List<std::optional<at::Tensor>> indices({rows});
  const auto index = [&](int64_t n) {
    return check("aten::index", "Tensor", {at::zeros({3, 5}), indices},
                 {fresh({n, 5}, Dtype::kFloat32)});
  };
  EXPECT_EQ(index(3), "(accepted)");
  EXPECT_THAT(index(4), HasSubstr("at most 15"));

  const auto unique = [&](int64_t n) {
    return check("aten::_unique2", "", {at::zeros({6}), true, true, true},
                 {fresh({n}, Dtype::kFloat32), fresh({6}), fresh({n})});
  };
  EXPECT_EQ(unique(6), "(accepted)");
  EXPECT_THAT(unique(7), HasSubstr("at most 6"));

  // The forms of unique() give the values and one number for each of them, or for each element.
  const at::Tensor six = at::zeros({6});
  const auto values = [](int64_t n) { return fresh({n}, Dtype::kFloat32); };
  for (const int64_t n : {6, 7}) {
    const auto expected = n == 6 ? ::testing::Matcher<std::string>("(accepted)")
                                 : ::testing::Matcher<std::string>(HasSubstr("at most 6"));
    const std::vector<wire::Result> three{values(n), fresh({6}), fresh({6})};
    EXPECT_THAT(check("aten::_unique", "", {six, true, true}, {values(n), fresh({6})}), expected);
    EXPECT_THAT(check("aten::unique_consecutive", "", {six, true, true, c10::IValue()}, three),
                expected);
    EXPECT_THAT(check("aten::unique_dim", "", {six, 0, true, true, true}, three), expected);
    EXPECT_THAT(check("aten::unique_dim_consecutive", "", {six, 0, true, true}, three), expected);
  }
}

// Promise 7b.
TEST_F(ResultBoundsTest, ASparseTensorHasAtMostTheElementsOfItsArgument) {
  const at::Tensor dense = at::zeros({2, 3});
  const auto sparse = [](int64_t values) {
    wire::Result result;
    result.kind = wire::ResultKind::kSparse;
    result.items = {fresh({2, 6}), fresh({values}, Dtype::kFloat32)};
    return result;
  };
  const auto check_all = [&](int64_t values) {
    const c10::IValue none;
    const std::vector<wire::Result> results{sparse(values)};
    return std::vector{
        check("aten::_to_sparse", "sparse_dim", {dense, 2}, results),
        check("aten::_to_sparse", "", {dense, none, none, none}, results),
        check("aten::_to_sparse_csr", "", {dense, none}, results),
        check("aten::_to_sparse_csc", "", {dense, none}, results),
        check("aten::_to_sparse_bsr", "", {dense, std::vector<int64_t>{1, 1}, none}, results),
        check("aten::_to_sparse_bsc", "", {dense, std::vector<int64_t>{1, 1}, none}, results),
    };
  };
  EXPECT_THAT(check_all(6), ::testing::Each("(accepted)"));
  EXPECT_THAT(check_all(37), ::testing::Each(HasSubstr("at most 36")));
}

// The values of its argument decide, so only the server's memory bounds it.
// Promise 7b.
TEST_F(ResultBoundsTest, ResultsWithoutABoundFitIntoTheServersMemory) {
  const auto bincount = [&](int64_t n) {
    return check("aten::bincount", "", {at::zeros({6}, at::kLong), c10::IValue(), 0}, {fresh({n})});
  };
  EXPECT_EQ(bincount(1 << 18), "(accepted)");
  EXPECT_THAT(bincount(1 << 19), HasSubstr("bytes, and at most 2097152 are possible"));
  const at::Tensor numbers = at::zeros({6}, at::kLong);
  EXPECT_THAT(check("aten::bincount", "", {numbers, c10::IValue(), 0}, {fresh({2, 2})}),
              HasSubstr("2 dimensions"));
  const auto repeat = [&](const wire::Result& result) {
    return check("aten::repeat_interleave", "Tensor", {numbers, c10::IValue()}, {result});
  };
  EXPECT_EQ(repeat(fresh({9})), "(accepted)");
  EXPECT_THAT(repeat(fresh({3, 3})), HasSubstr("2 dimensions"));
  EXPECT_THAT(repeat(fresh({9}, Dtype::kFloat32)), HasSubstr("another dtype"));
}

// Promise 7b.
TEST_F(ResultBoundsTest, ResultsHaveTheNumberAndKindThatTheOperatorHas) {
  wire::Result number;
  number.kind = wire::ResultKind::kInt;
  EXPECT_THAT(nonzero(number), HasSubstr("is not a tensor"));
  EXPECT_THAT(check("aten::nonzero", "", {at::zeros({3})}, {}), HasSubstr("another number"));
  EXPECT_THAT(check("aten::equal", "", {at::zeros({3}), at::zeros({3})}, {number}),
              HasSubstr("is of another type"));
}

}  // namespace
}  // namespace torch_remote::client
