#include "wire/waiting.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::wire {
namespace {

using Bytes = std::vector<std::byte>;

Bytes block_of(const Hello& hello) {
  Writer writer;
  encode(writer, hello);
  const BlockHead head = encode_block_head(writer.view().size());
  Bytes block(head.size() + writer.view().size());
  std::ranges::copy(writer.view(), std::ranges::copy(head, block.begin()).out);
  return block;
}

TEST(Waiting, TheBlockHasGoldenBytes) {
  const WaitingBlock golden{std::byte{2}, std::byte{0}, std::byte{0},
                            std::byte{0}, std::byte{3}, std::byte{3}};
  EXPECT_EQ(waiting_block(), golden);
}

TEST(Waiting, AHelloIsWholeWithItsLastByteAndNotBefore) {
  Bytes block = block_of({});
  for (size_t length = 0; length < block.size(); ++length)
    EXPECT_FALSE(holds_hello(std::span(block).first(length))) << length;
  EXPECT_TRUE(holds_hello(block));
  block.push_back(std::byte{7});  // what comes after it does not matter
  EXPECT_TRUE(holds_hello(block));
}

// Promise 2.
TEST(Waiting, WhatIsNoHelloIsRefusedAsSoonAsItIsSeen) {
  Bytes block = block_of({});
  block[4] = std::byte{2};
  EXPECT_THROW(holds_hello(std::span(block).first(5)), ProtocolError);
  block[4] = std::byte{1};
  block.back() = std::byte{1};  // a proof that is not there
  EXPECT_THROW(holds_hello(block), ProtocolError);
  const BlockHead longest = encode_block_head(kMaxHandshakeBytes);
  EXPECT_THROW(holds_hello(longest), ProtocolError);
  const BlockHead empty = encode_block_head(0);
  EXPECT_THROW(holds_hello(empty), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::wire
