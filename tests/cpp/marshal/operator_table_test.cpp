#include "marshal/operator_table.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_remote::marshal {
namespace {

std::vector<std::string> all_keys() {
  std::vector<std::string> keys;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    keys.push_back(row_key(name));
  return keys;
}

// A row for another version of torch stands between #if TORCH_VERSION_MINOR … and #endif.
TEST(OperatorTable, EveryRowNamesOperatorsOfThisTorch) {
  const std::vector<std::string> keys = all_keys();
  for (const OperatorRow& row : operator_rows()) {
    for (const char* name : row.operators) {
      EXPECT_TRUE(std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
        return matches(name, key);
      })) << name;
    }
  }
}

TEST(OperatorTable, NoOperatorHasTwoRoutes) {
  const auto rows = operator_rows();
  for (const std::string& key : all_keys()) {
    const auto says_route = [&](const OperatorRow& row) {
      return row.route != Route::kUsual &&
             std::any_of(row.operators.begin(), row.operators.end(),
                         [&](const char* name) { return matches(name, key); });
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
  const OperatorRules rules = rules_of({"aten::linalg_eig", ""});
  EXPECT_EQ(rules.traits, kAsksServer | kChecksValues);
  EXPECT_EQ(std::count(rules.reason.begin(), rules.reason.end(), '\n'), 1);
}

TEST(OperatorTable, AReasonThatDoesNotConcernUsersIsNoLine) {
  EXPECT_EQ(rules_of({"aten::fill_", "Scalar"}).reason, "");
  const std::string reason = rules_of({"aten::copy_", ""}).reason;
  EXPECT_EQ(std::count(reason.begin(), reason.end(), '\n'), 1);
}

TEST(OperatorTable, TheIndexFindsWhatComparingWithEveryNameFinds) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    Traits traits = kPlain;
    std::string reasons;
    for (const OperatorRow& row : operator_rows()) {
      if (std::ranges::none_of(row.operators,
                               [&](const char* each) { return matches(each, row_key(name)); }))
        continue;
      traits |= row.traits;
      reasons += (reasons.empty() || std::string_view(row.reason).empty() ? "" : "\n");
      reasons += row.reason;
    }
    const OperatorRules rules = rules_of(name);
    EXPECT_EQ(rules.traits, traits) << name;
    EXPECT_EQ(rules.reason, reasons) << name;
  }
}

}  // namespace
}  // namespace torch_remote::marshal
