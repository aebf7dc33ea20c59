#include "client/session/signature_table.h"

#include <cstring>

#include <gtest/gtest.h>

namespace torch_remote::client {
namespace {

std::vector<std::byte> key_of(uint64_t number) {
  std::vector<std::byte> key(sizeof number);
  std::memcpy(key.data(), &number, sizeof number);
  return key;
}

SignaturePtr make(uint64_t number, uint64_t hash) {
  auto signature = c10::make_intrusive<Signature>();
  signature->key = key_of(number);
  signature->hash = hash;
  return signature;
}

SignaturePtr make(uint64_t number) {
  return make(number, number);
}

class SignatureTableTest : public testing::Test {
 protected:
  SignaturePtr find(uint64_t number) { return table.find(number, key_of(number)); }

  // Signatures 0 … kMaxSignatures - 1 in the slots of the same number.
  void fill() {
    for (uint64_t number = 0; number < wire::kMaxSignatures; ++number)
      table.add(make(number))->announced = true;
  }

  SignatureTable table;
};

TEST_F(SignatureTableTest, AnEmptyTableFindsNothing) {
  EXPECT_FALSE(find(1));
}

TEST_F(SignatureTableTest, SlotsAreGivenInOrder) {
  EXPECT_EQ(table.add(make(10))->index, 0);
  EXPECT_EQ(table.add(make(20))->index, 1);
  EXPECT_EQ(find(20)->index, 1);
}

TEST_F(SignatureTableTest, AFailureMarksTheSignatureInThatSlotOnly) {
  table.add(make(10));
  table.add(make(20));
  table.mark_failed(1);
  table.mark_failed(7);  // there is none
  EXPECT_FALSE(find(10)->is_doubted);
  EXPECT_TRUE(find(20)->is_doubted);
}

TEST_F(SignatureTableTest, MoreBytesThanAllowedGiveUpTheLeastRecentlyUsed) {
  SignatureTable small(8, 100);
  const auto announce = [&](uint64_t number, uint64_t bytes) {
    return small.count_announced(small.add(make(number))->index, bytes);
  };
  EXPECT_TRUE(announce(10, 40).empty());
  EXPECT_TRUE(announce(20, 40).empty());
  EXPECT_EQ(announce(30, 50), std::vector<uint32_t>{0});
  EXPECT_FALSE(small.find(10, key_of(10)));
  small.mark_failed(0);  // there is none now
  EXPECT_EQ(small.find(20, key_of(20))->index, 1);

  EXPECT_TRUE(announce(40, 5).empty());
  EXPECT_EQ(small.find(40, key_of(40))->index, 0);  // that of the one given up
  EXPECT_EQ(announce(50, 1000).size(), 3);          // one alone may have more
  EXPECT_EQ(small.find(50, key_of(50))->index, 3);
}

TEST_F(SignatureTableTest, AHashIsNotEnoughToBeFound) {
  const SignaturePtr one = table.add(make(1, 77));
  const SignaturePtr two = table.add(make(2, 77));
  EXPECT_EQ(table.find(77, key_of(1)), one);
  EXPECT_EQ(table.find(77, key_of(2)), two);
  EXPECT_FALSE(table.find(77, key_of(3)));
}

TEST_F(SignatureTableTest, AddingAKeyThatIsThereGivesTheOneThatIsThere) {
  const SignaturePtr first = table.add(make(1));
  const SignaturePtr second = make(1);
  EXPECT_EQ(table.add(second), first);
  EXPECT_EQ(second->index, Signature::kNotOnWire);
}

TEST_F(SignatureTableTest, AReplacementTakesTheSlotAndIsToBeAnnounced) {
  table.add(make(1));
  const SignaturePtr old = table.add(make(2));
  old->announced = true;
  const SignaturePtr known = make(2);

  table.replace(known);

  EXPECT_EQ(find(2), known);
  EXPECT_EQ(known->index, 1);
  EXPECT_FALSE(known->announced);
  EXPECT_EQ(old->index, Signature::kNotOnWire);
  EXPECT_FALSE(old->announced);
}

TEST_F(SignatureTableTest, AReplacementForOneThatIsNotThereIsNotAdded) {
  const SignaturePtr known = make(1);
  table.replace(known);
  EXPECT_FALSE(find(1));
  EXPECT_EQ(known->index, Signature::kNotOnWire);
}

TEST_F(SignatureTableTest, AFullTableGivesUpTheOneTheClockHandMeetsFirst) {
  fill();
  const SignaturePtr first = find(0);

  const SignaturePtr fresh = table.add(make(wire::kMaxSignatures));

  EXPECT_EQ(fresh->index, 0);
  EXPECT_FALSE(find(0));
  EXPECT_EQ(find(wire::kMaxSignatures), fresh);
  EXPECT_EQ(first->index, Signature::kNotOnWire);
  EXPECT_FALSE(first->announced);
  EXPECT_EQ(first->key, key_of(0));  // whoever holds it still has it whole
}

TEST_F(SignatureTableTest, WhatWasUsedSinceTheHandPassedIsKept) {
  fill();
  table.add(make(wire::kMaxSignatures));  // the hand has passed everybody
  find(1);

  const SignaturePtr fresh = table.add(make(wire::kMaxSignatures + 1));

  EXPECT_EQ(fresh->index, 2);
  EXPECT_TRUE(find(1));
  EXPECT_FALSE(find(2));
}

TEST_F(SignatureTableTest, OneThatWasGivenUpComesBackInAnotherSlotUnannounced) {
  fill();
  const SignaturePtr evicted = find(0);
  table.add(make(wire::kMaxSignatures));

  EXPECT_EQ(table.add(evicted), evicted);

  EXPECT_EQ(evicted->index, 1);
  EXPECT_FALSE(evicted->announced);
  EXPECT_EQ(find(0), evicted);
}

TEST_F(SignatureTableTest, AReplacementKeepsItsPlaceWhenTheHandComes) {
  fill();
  const SignaturePtr known = make(0);
  table.replace(known);

  table.add(make(wire::kMaxSignatures));

  EXPECT_EQ(known->index, Signature::kNotOnWire);
  EXPECT_FALSE(find(0));
}

TEST_F(SignatureTableTest, OnesThatShareABucketAreGivenUpOneByOne) {
  constexpr uint64_t kHash = 5;
  constexpr uint64_t kFirstOther = 1000;
  for (uint64_t number = 0; number < 3; ++number)
    table.add(make(number, kHash));
  for (uint64_t number = 3; number < wire::kMaxSignatures; ++number)
    table.add(make(kFirstOther + number));

  for (uint64_t gone = 0; gone < 3; ++gone) {
    table.add(make(kFirstOther + wire::kMaxSignatures + gone));
    for (uint64_t number = 0; number < 3; ++number) {
      SCOPED_TRACE(testing::Message() << "given up: " << gone << ", looked for: " << number);
      const SignaturePtr found = table.find(kHash, key_of(number));
      EXPECT_EQ(static_cast<bool>(found), number > gone);
      if (found)
        found->used = false;  // looking is using
    }
  }
}

TEST_F(SignatureTableTest, EverNewSignaturesLeaveTheNewestFindable) {
  constexpr uint64_t kAll = 3 * wire::kMaxSignatures;
  for (uint64_t number = 0; number < kAll; ++number)
    ASSERT_LT(table.add(make(number))->index, wire::kMaxSignatures);
  EXPECT_FALSE(find(0));
  for (uint64_t number = kAll - 1000; number < kAll; ++number)
    EXPECT_TRUE(find(number));
}

}  // namespace
}  // namespace torch_remote::client
