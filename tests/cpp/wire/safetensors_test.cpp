#include "wire/safetensors.h"

#include <cstring>

#include <gmock/gmock.h>

namespace torch_remote::wire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A header with these members, and a file that has `data` bytes after it.
std::vector<FileTensor> parse(const std::string& members, uint64_t data) {
  const std::string header = "{" + members + "}";
  return parse_tensors(header, kFileHeadBytes + header.size() + data);
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[)" + shape +
         R"(],"data_offsets":[)" + offsets + "]}";
}

// Why the header is refused; empty: it is not.
std::string refusal_of(const std::string& members, uint64_t data) {
  try {
    parse(members, data);
  } catch (const FileContentError& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "";
}

uint64_t length_in(const std::string& head, uint64_t file_length) {
  return header_length(std::as_bytes(std::span(head)), file_length);
}

std::string refusal_of_head(const std::string& head, uint64_t file_length) {
  try {
    length_in(head, file_length);
  } catch (const FileContentError& error) {
    return error.what();
  }
  return "";
}

std::string head_of(uint64_t length) {
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return head;
}

TEST(Safetensors, TensorsComeInTheOrderOfTheFile) {
  const auto tensors =
      parse(R"("__metadata__":{"format":"pt"},)" + tensor("b", "F32", "2,3", "4,28") + "," +
                tensor("a", "BF16", "2", "0,4") + "," + tensor("c", "U8", "0,5", "28,28") + "," +
                tensor("d", "BOOL", "", "28,29"),
            29);
  ASSERT_EQ(tensors.size(), 4);
  const uint64_t begins = tensors[0].begin;
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].spec.dtype, Dtype::kBfloat16);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].begin, begins + 4);
  EXPECT_EQ(tensors[1].spec.sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[1].spec.strides, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(tensors[2].name, "c");
  EXPECT_EQ(tensors[3].begin, begins + 28);
  EXPECT_TRUE(tensors[3].spec.sizes.empty());
}

TEST(Safetensors, TwoNumbersOfFourBitsAreOneElement) {
  const auto tensors = parse(tensor("x", "F4", "2,4", "0,4"), 4);
  EXPECT_EQ(tensors.at(0).spec.sizes, (std::vector<int64_t>{2, 2}));
  EXPECT_THAT(refusal_of(tensor("x", "F4", "3", "0,2"), 2), HasSubstr("half bytes"));
  EXPECT_THAT(refusal_of(tensor("x", "F4", "", "0,1"), 1), HasSubstr("half bytes"));
}

TEST(Safetensors, WhiteSpaceAndUnknownKeysAreNoMatter) {
  EXPECT_EQ(
      refusal_of(R"( "x" : {"dtype":"U8","shape":[2],"new":{"a":[1]},"data_offsets":[0,2]})", 2),
      "");
}

// Promise 7e.
TEST(Safetensors, OffsetsThatOverlapLeaveAHoleOrLieAreRefused) {
  EXPECT_THAT(refusal_of(tensor("a", "U8", "2", "0,2") + "," + tensor("b", "U8", "2", "1,3"), 3),
              HasSubstr("overlaps"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "2", "0,2") + "," + tensor("b", "U8", "2", "0,2"), 2),
              HasSubstr("overlaps"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "2", "1,3"), 3), HasSubstr("behind bytes"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "2", "0,2"), 3), HasSubstr("3 follow the header"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "2", "0,2"), 1), HasSubstr("inside the file"));
  EXPECT_THAT(refusal_of(tensor("a", "F32", "2", "0,2"), 2), HasSubstr("needs 8 bytes"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "2", "2,0"), 2), HasSubstr("behind bytes"));
  EXPECT_THAT(refusal_of(tensor("b", "U8", "2", "0,2") + "," + tensor("a", "U8", "1", "2,1"), 2),
              HasSubstr("inside the file"));
}

// Promise 7e.
TEST(Safetensors, NumbersThatOverflowAreRefused) {
  EXPECT_THAT(refusal_of(tensor("a", "U8", "1", "0,18446744073709551616"), 1), HasSubstr("large"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "1", "0,18446744073709551615"), 1),
              HasSubstr("inside the file"));
  EXPECT_THAT(refusal_of(tensor("a", "F64", "4294967296,4294967296", "0,0"), 0),
              HasSubstr("more elements"));
  EXPECT_THAT(refusal_of(tensor("a", "F64", "0,4294967296,4294967296", "0,0"), 0),
              HasSubstr("more elements"));
  EXPECT_THAT(refusal_of(tensor("a", "F64", "281474976710656", "0,0"), 0), HasSubstr("needs"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "-1", "0,0"), 0), HasSubstr("whole number"));
}

// Promise 7e.
TEST(Safetensors, WhatIsMissingTwiceOrUnknownIsRefused) {
  EXPECT_THAT(refusal_of(R"("a":{"dtype":"U8","shape":[1]})", 1), HasSubstr("lacks"));
  EXPECT_THAT(refusal_of(R"("a":{})", 0), HasSubstr("lacks"));
  EXPECT_THAT(refusal_of(R"("a":[])", 0), HasSubstr("an object is expected"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "1", "0,1") + "," + tensor("a", "U8", "1", "1,2"), 2),
              HasSubstr("twice"));
  EXPECT_THAT(refusal_of(R"("a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]})", 1),
              HasSubstr("twice"));
  EXPECT_THAT(refusal_of(tensor("a", "Q4", "1", "0,1"), 1), HasSubstr("Q4"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "1", "0"), 1), HasSubstr("two offsets"));
  EXPECT_THAT(refusal_of(tensor("a", "U8", "1", "0,1,1"), 1), HasSubstr("two offsets"));
  EXPECT_THAT(refusal_of(R"("__metadata__":{"a":1})", 0), HasSubstr("a string is expected"));
}

// Promise 7e.
TEST(Safetensors, NamesThatCouldHarmATerminalAreRefusedAndEscaped) {
  for (const char* const name : {R"(a\u0000b)", R"(a\nb)", R"(\u001b[2J)", R"(a\u202eb)"}) {
    const std::string refusal = refusal_of(tensor(name, "U8", "1", "0,1"), 1);
    EXPECT_THAT(refusal, HasSubstr("control character"));
    EXPECT_EQ(refusal.find('\x1b'), std::string::npos);
  }
  const std::string dtype = refusal_of(tensor("a", R"(\u001b[2J)", "1", "0,1"), 1);
  EXPECT_THAT(dtype, HasSubstr("\\x1b[2J"));
  EXPECT_THAT(refusal_of(tensor(std::string(kMaxFileName + 1, 'x'), "U8", "1", "0,1"), 1),
              HasSubstr("at most"));
}

// Promise 7e.
TEST(Safetensors, DimensionsAndEntriesAreLimited) {
  std::string ones = "1";
  for (uint64_t i = 0; i < kMaxDimensions; ++i)
    ones += ",1";
  EXPECT_THAT(refusal_of(tensor("a", "U8", ones, "0,1"), 1), HasSubstr("dimensions"));
  std::string many;
  for (uint64_t i = 0; i <= kMaxFileEntries; ++i)
    many += (i == 0 ? "" : ",") + tensor(std::to_string(i), "U8", "0", "0,0");
  EXPECT_THAT(refusal_of(many, 0), HasSubstr("more than 262144 tensors"));
}

// Promise 7e.
TEST(Safetensors, AHeaderOfOtherLengthThanTheFileHasIsRefused) {
  EXPECT_EQ(length_in(head_of(2), 10), 2);
  EXPECT_THAT(refusal_of_head(head_of(3), 10), HasSubstr("would have 3 bytes"));
  EXPECT_THAT(refusal_of_head(head_of(UINT64_MAX), 10), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal_of_head("abc", 3), HasSubstr("it has 3 bytes"));
  EXPECT_THAT(refusal_of_head(head_of(kMaxFileHeader + 1), uint64_t{1} << 40),
              HasSubstr("at most"));
  EXPECT_THAT(refusal_of_head(head_of(100'000'000), uint64_t{1} << 40), HasSubstr("at most"));
}

TEST(Safetensors, AFileOfTorchSaveIsRefusedWithTheCommandThatConvertsIt) {
  using std::string_literals::operator""s;
  for (const std::string& head :
       {"PK\x03\x04\x00\x00\x08\x08"s, "\x80\x02\x8a\x0al\xfc\x9c\x46"s}) {
    EXPECT_THAT(refusal_of_head(head, 1000), HasSubstr("pickle"));
    EXPECT_THAT(refusal_of_head(head, 1000), HasSubstr("python -c"));
  }
  // The length of a header may begin as a pickle does.
  EXPECT_EQ(length_in(head_of(0x280), 10000), 0x280);
}

TEST(Safetensors, AnIndexSaysWhichTensorIsInWhichFile) {
  const CheckpointIndex index = parse_index(
      R"({"metadata":{"total_size":1.5},"weight_map":{"a":"x-1","b":"x-2","c":"x-1"}})");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"x-1", "x-2"}));
  EXPECT_EQ(index.entries, (std::vector<IndexEntry>{{"a", 0}, {"b", 1}, {"c", 0}}));
}

TEST(Safetensors, WhatIsNoIndexIsRefused) {
  std::string files = R"({"weight_map":{)";
  for (uint64_t i = 0; i <= kMaxShards; ++i)
    files += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":"f)" + std::to_string(i) + "\"";
  files += "}}";
  for (const std::string& text :
       {std::string("{}"), std::string(R"({"weight_map":{"a":1}})"), files,
        std::string(R"({"weight_map":{"a":"x","a":"x"}})"),
        std::string(R"({"weight_map":{"a":"x\n"}})"),
        std::string(R"({"weight_map":{},"weight_map":{}})"), std::string("[]"), std::string()})
    EXPECT_THROW(parse_index(text), FileContentError) << text.substr(0, 50);
}

}  // namespace
}  // namespace torch_remote::wire
