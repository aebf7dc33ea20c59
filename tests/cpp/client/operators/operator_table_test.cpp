#include "client/operators/operator_table.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_remote::client {
namespace {

std::vector<OperatorRow> all_rows() {
  std::vector<OperatorRow> rows = call_rows().vec();
  const OperatorRows more = kernels::kernel_rows();
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

std::vector<std::string> all_keys() {
  std::vector<std::string> keys;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    keys.push_back(row_key(name));
  return keys;
}

// A row for another version of torch stands between #if TORCH_VERSION_MINOR … and #endif.
TEST(OperatorTable, EveryRowNamesOperatorsOfThisTorch) {
  const std::vector<std::string> keys = all_keys();
  for (const OperatorRow& row : all_rows()) {
    for (const NamedOperator& named : row.operators) {
      EXPECT_TRUE(std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
        return matches(named, key);
      })) << named.name;
    }
  }
}

TEST(OperatorTable, NoOperatorHasTwoRoutes) {
  const std::vector<OperatorRow> rows = all_rows();
  for (const std::string& key : all_keys()) {
    const auto says_route = [&](const OperatorRow& row) {
      return row.route != Route::kUsual &&
             std::any_of(row.operators.begin(), row.operators.end(),
                         [&](const NamedOperator& named) { return matches(named, key); });
    };
    EXPECT_LE(std::count_if(rows.begin(), rows.end(), says_route), 1) << key;
  }
}

TEST(OperatorTable, ANameMeansOneOverloadAndAStarTheRest) {
  EXPECT_TRUE(matches("max", "max."));
  EXPECT_FALSE(matches("max", "max.dim"));
  EXPECT_FALSE(matches("max", "maximum."));
  EXPECT_TRUE(matches("max.dim", "max.dim"));
  EXPECT_FALSE(matches("max.dim", "max.dim_max"));
  EXPECT_TRUE(matches("max.*", "max."));
  EXPECT_TRUE(matches("max.*", "max.dim"));
  EXPECT_FALSE(matches("max.*", "maximum."));
  EXPECT_TRUE(matches("max*", "maximum.out"));
  EXPECT_FALSE(matches("max.*", row_key({"other::max", ""})));
}

TEST(OperatorTable, TwoRowsOfAnOperatorAddUp) {
  Special special;
  special.add(call_rows(), {"aten::linalg_eig", ""});
  EXPECT_EQ(special.traits, kAsksServer | kChecksValues);
  EXPECT_EQ(std::count(special.reason.begin(), special.reason.end(), '\n'), 1);
}

}  // namespace
}  // namespace torch_remote::client
