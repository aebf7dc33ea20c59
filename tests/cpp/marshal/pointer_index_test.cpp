#include "marshal/pointer_index.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace torch_remote::marshal {
namespace {

TEST(PointerIndex, FewAndManyAreFoundWhereTheyAre) {
  const std::vector<int> values(10'000);
  std::vector<const int*> list;
  PointerIndex index;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(index.find(list, &values[i]), PointerIndex::kNone);
    list.push_back(&values[i]);
    ASSERT_EQ(index.find(list, &values[i / 2]), i / 2);
  }
}

TEST(PointerIndex, OfTwoTheFirstIsFound) {
  const std::vector<int> values(50);
  std::vector<const int*> list;
  PointerIndex index;
  for (int round = 0; round < 2; ++round)
    for (const int& value : values)
      list.push_back(&value);
  EXPECT_EQ(index.find(list, &values[7]), 7);
}

TEST(PointerIndex, AListThatBeginsAnewHasNothingOfTheOneBefore) {
  const std::vector<int> values(200);
  std::vector<const int*> list;
  PointerIndex index;
  for (size_t i = 0; i < 100; ++i)
    list.push_back(&values[i]);
  ASSERT_EQ(index.find(list, &values[99]), 99);

  index.clear();
  list.clear();
  for (size_t i = 100; i < 200; ++i)
    list.push_back(&values[i]);

  EXPECT_EQ(index.find(list, &values[100]), 0);
  EXPECT_EQ(index.find(list, &values[99]), PointerIndex::kNone);
}

}  // namespace
}  // namespace torch_remote::marshal
