#include "client/kernels/table.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include "marshal/operator_table.h"

namespace torch_remote::client::kernels {
namespace {

using marshal::Route;

std::vector<c10::OperatorName> aten() {
  std::vector<c10::OperatorName> names = c10::Dispatcher::singleton().getAllOpNames();
  std::erase_if(names,
                [](const c10::OperatorName& name) { return !name.name.starts_with("aten::"); });
  return names;
}

TEST(KernelTable, EachRowNamesAnOperatorOfThisTorch) {
  for (const KernelRow& row : kernel_rows())
    EXPECT_TRUE(std::ranges::any_of(aten(), [&](const c10::OperatorName& name) {
      return marshal::matches(row.name, marshal::row_key(name));
    })) << row.name;
}

// Registration calls the kernel of each operator whose route is one of these.
TEST(KernelTable, ThoseWithAKernelByTheTableOfOperatorsAreItsRows) {
  for (const c10::OperatorName& name : aten()) {
    const marshal::OperatorRules rules = marshal::rules_of(name);
    const bool has_kernel = find_kernel(name) != nullptr;
    if (rules.route == Route::kKernel || rules.route == Route::kBranch) {
      EXPECT_TRUE(has_kernel) << name;
    } else if (has_kernel) {
      EXPECT_EQ(rules.route, Route::kSent) << name;
    }
  }
}

}  // namespace
}  // namespace torch_remote::client::kernels
