#include "wire/files.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "wire/bytes.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

TensorSpec plain(Dtype dtype, std::vector<int64_t> sizes) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.strides = contiguous_strides(sizes);
  spec.sizes = std::move(sizes);
  return spec;
}

template <typename Body>
std::string bytes_of(const Body& body) {
  Writer writer;
  encode(writer, body);
  return hex(writer.view());
}

TEST(Files, AQueryHasTheFieldsOfItsAction) {
  EXPECT_EQ(bytes_of(FileQuery{FileAction::kList, {}, 0, 0, "a"}), "000161");
  EXPECT_EQ(bytes_of(FileQuery{FileAction::kOpen, FileForm::kIndex, 7, 0, "a"}), "0107020161");
  EXPECT_EQ(bytes_of(FileQuery{FileAction::kEntries, {}, 7, 300, {}}), "0207ac02");
}

TEST(Files, AQueryIsReadAsItWasWritten) {
  Writer writer;
  encode(writer, FileQuery{FileAction::kOpen, FileForm::kTensors, 7, 0, "run/x"});
  Reader reader(writer.view());
  const FileQuery read = decode_file_query(reader);
  reader.finish();
  EXPECT_EQ(read.action, FileAction::kOpen);
  EXPECT_EQ(read.form, FileForm::kTensors);
  EXPECT_EQ(read.file, 7);
  EXPECT_EQ(read.name, "run/x");
}

TEST(Files, AnUnknownActionOrFormOrTheFile0IsRefused) {
  for (const std::string_view body : {"\x03\x01", "\x01\x07\x03\x01\x61", "\x02"}) {
    Reader reader(std::as_bytes(std::span(body)));
    EXPECT_THROW(decode_file_query(reader), ProtocolError);
  }
  const std::array zero{std::byte{2}, std::byte{0}, std::byte{1}};
  Reader reader(zero);
  EXPECT_THROW(decode_file_query(reader), ProtocolError);
}

TEST(Files, AListHasNamesAndLengths) {
  const std::vector<ListedFile> files{{"a", 1}, {"b/c", 300}};
  EXPECT_EQ(bytes_of(files), "0201610103622f63ac02");
  Writer writer;
  encode(writer, files);
  Reader reader(writer.view());
  EXPECT_EQ(decode_listed_files(reader), files);
}

TEST(Files, AnOpenedFileHasItsLengthEntriesAndShards) {
  Writer writer;
  encode(writer, OpenedFile{300, 2, {"a"}});
  EXPECT_EQ(hex(writer.view()), "ac0202010161");
  Reader reader(writer.view());
  const OpenedFile read = decode_opened_file(reader);
  EXPECT_EQ(read.length, 300);
  EXPECT_EQ(read.entries, 2);
  EXPECT_EQ(read.shards, std::vector<std::string>{"a"});
}

TEST(Files, AnEntryIsATensorWithItsPlace) {
  const std::vector<FileTensor> tensors{{"w", plain(Dtype::kFloat16, {2, 3}), 300}};
  Writer writer;
  encode_page(writer, tensors, 0);
  EXPECT_EQ(hex(writer.view()), "0101770501020203ac02");
  Reader reader(writer.view());
  EXPECT_EQ(decode_file_tensors(reader), tensors);
  reader.finish();
}

TEST(Files, AnEntryOfAnIndexIsATensorWithItsFile) {
  const std::vector<IndexEntry> entries{{"v", 0}, {"w", 1}};
  Writer writer;
  encode_page(writer, entries, 1);
  EXPECT_EQ(hex(writer.view()), "01017701");
  Reader reader(writer.view());
  EXPECT_EQ(decode_index_entries(reader), std::vector<IndexEntry>{entries[1]});
}

TEST(Files, APageEndsAndTheNextGoesOn) {
  const IndexEntry entry{std::string(kMaxFileName, 'x'), 0};
  const std::vector<IndexEntry> entries(3000, entry);
  uint64_t read = 0;
  while (read < entries.size()) {
    Writer writer;
    encode_page(writer, entries, read);
    EXPECT_LT(writer.size(), kMaxReplyBytes);
    Reader reader(writer.view());
    const size_t count = decode_index_entries(reader).size();
    ASSERT_GT(count, 0);
    read += count;
  }
  EXPECT_EQ(read, entries.size());
  Writer none;
  encode_page(none, entries, UINT64_MAX);
  EXPECT_EQ(hex(none.view()), "00");
}

// A server may lie.
TEST(Files, ATensorThatIsNotContiguousOrTooLargeIsRefused) {
  TensorSpec turned = plain(Dtype::kFloat32, {2, 3});
  turned.strides = {1, 2};
  TensorSpec conj = plain(Dtype::kComplex64, {2});
  conj.conj = true;
  for (const TensorSpec& spec :
       {turned, conj, plain(Dtype::kFloat64, {int64_t{1} << 24, int64_t{1} << 24})}) {
    Writer writer;
    encode_page(writer, std::vector<FileTensor>{{"w", spec, 0}}, 0);
    Reader reader(writer.view());
    EXPECT_THROW(decode_file_tensors(reader), ProtocolError);
  }
}

TEST(Files, ANameIsLimited) {
  Writer writer;
  encode(writer, std::vector<ListedFile>{{std::string(kMaxFileName + 1, 'x'), 0}});
  Reader reader(writer.view());
  EXPECT_THROW(decode_listed_files(reader), ProtocolError);
}

TEST(Files, AFillNamesItsStorageFileAndPlace) {
  Writer writer;
  encode(writer, Fill{5, 7, 300});
  EXPECT_EQ(hex(writer.view()), "1c040507ac02");
  Reader reader(writer.view());
  ReceivedMessage message = next_message(reader);
  ASSERT_EQ(message.tag, Tag::kFill);
  const Fill read = decode_fill(message.body);
  EXPECT_EQ(read.storage, 5);
  EXPECT_EQ(read.file, 7);
  EXPECT_EQ(read.begin, 300);
}

TEST(Files, AFileIsClosedByItsNumber) {
  Writer writer;
  encode_close_file(writer, 7);
  EXPECT_EQ(hex(writer.view()), "1d0107");
  Reader reader(writer.view());
  ReceivedMessage message = next_message(reader);
  EXPECT_EQ(decode_close_file(message.body), 7);
}

}  // namespace
}  // namespace torch_remote::wire
