#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/error.h"
#include "server/files/shared_folders.h"
#include "server/support.h"
#include "wire/files.h"

namespace torch_remote::server::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileHandlerTest : public ::testing::Test {
 protected:
  FileHandlerTest() { write("floats", {1, 2, 3, 4}); }

  ~FileHandlerTest() override { fs::remove_all(root_); }

  static fs::path new_folder() {
    std::string name = (fs::temp_directory_path() / "files-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw_system_errno("mkdtemp", errno);
    return name;
  }

  void write(const char* name, const std::vector<float>& values) const {
    std::ofstream(root_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }

  Reply ask(const wire::FileQuery& query) {
    FrameText frame;
    frame.query(9, wire::QueryKind::kFile);
    encode(frame.writer, query);
    return server_.apply(frame).at(0);
  }

  Reply open(uint64_t file, const std::string& name, wire::FileForm form = wire::FileForm::kBytes) {
    return ask({wire::FileAction::kOpen, form, file, 0, name});
  }

  void fill(uint64_t storage, uint64_t file, uint64_t begin) {
    server_.apply(FrameText().message(wire::Fill{storage, file, begin}));
  }

  void close(uint64_t file) {
    FrameText frame;
    wire::encode_close_file(frame.writer, file);
    server_.apply(frame);
  }

  const fs::path root_ = new_folder();
  Server server_{1, uint64_t{1} << 20,
                 std::make_shared<const SharedFolders>(std::vector{root_.string()})};
};

TEST_F(FileHandlerTest, AStorageIsFilledFromAPartOfAFile) {
  EXPECT_FALSE(open(1, "floats").failed);
  server_.apply(FrameText().resize(1, 8));
  fill(1, 1, 4);
  EXPECT_EQ(server_.read(1, spec({2})).floats(), (std::vector<float>{2, 3}));
}

TEST_F(FileHandlerTest, AStorageThatHasAValueGetsAnother) {
  open(1, "floats");
  server_.apply(FrameText().store(1, {7, 7, 7, 7}));
  fill(1, 1, 0);
  EXPECT_EQ(server_.read(1, spec({4})).floats(), (std::vector<float>{1, 2, 3, 4}));
}

// Promise 5.
TEST_F(FileHandlerTest, APlaceOutsideTheFileIsAProtocolError) {
  open(1, "floats");
  server_.apply(FrameText().resize(1, 8));
  EXPECT_THROW(fill(1, 1, 12), ProtocolError);
  EXPECT_THROW(fill(1, 1, UINT64_MAX - 3), ProtocolError);
}

TEST_F(FileHandlerTest, ANumberThatIsTakenOrUnknownIsAProtocolError) {
  open(1, "floats");
  server_.apply(FrameText().resize(1, 8));
  EXPECT_THROW(open(1, "floats"), ProtocolError);
  EXPECT_THROW(fill(1, 2, 0), ProtocolError);
  close(2);  // does nothing
  close(1);
  EXPECT_THROW(fill(1, 1, 0), ProtocolError);
  EXPECT_FALSE(open(1, "floats").failed);
}

// Promise 7e.
TEST_F(FileHandlerTest, OpenFilesAreLimited) {
  for (uint64_t file = 1; file <= wire::kMaxOpenFiles; ++file)
    ASSERT_FALSE(open(file, "floats").failed);
  const Reply refused = open(wire::kMaxOpenFiles + 1, "floats");
  EXPECT_THAT(refused.error.message, HasSubstr("at most 256 files"));
  close(1);
  EXPECT_FALSE(open(wire::kMaxOpenFiles + 1, "floats").failed);
}

// Promise 7e.
TEST_F(FileHandlerTest, HeadersOfOpenFilesAreLimitedTogether) {
  const uint64_t length = wire::kMaxFileHeader / 2 + 1;
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  text += "{}" + std::string(length - 2, ' ');
  std::ofstream(root_ / "empty", std::ios::binary) << text;
  ASSERT_FALSE(open(1, "empty", wire::FileForm::kTensors).failed);
  EXPECT_THAT(open(2, "empty", wire::FileForm::kTensors).error.message,
              HasSubstr("headers and indices of open files"));
  close(1);
  EXPECT_FALSE(open(2, "empty", wire::FileForm::kTensors).failed);
}

TEST_F(FileHandlerTest, AFileThatChangesStopsTheThreadAndLeavesNoValue) {
  open(1, "floats");
  ASSERT_EQ(::truncate((root_ / "floats").c_str(), 6), 0);
  server_.apply(FrameText().resize(1, 16));
  fill(1, 1, 0);
  ASSERT_EQ(server_.notices.size(), 1);
  EXPECT_THAT(server_.notices[0].message, HasSubstr("floats became shorter"));
  EXPECT_EQ(server_.notices[0].call, 2);
  server_.apply(FrameText().go_on(1));
  EXPECT_TRUE(server_.read(1, spec({4})).failed);
}

// Promise 7e.
TEST_F(FileHandlerTest, TheLimitOfMemoryCountsWhatIsFilled) {
  write("large", std::vector<float>((1 << 18) + 1));
  open(1, "large");
  server_.apply(FrameText().resize(1, (1 << 20) + 4));
  fill(1, 1, 0);
  ASSERT_EQ(server_.notices.size(), 1);
  EXPECT_EQ(server_.notices[0].kind, wire::ErrorKind::kOutOfMemory);
}

TEST_F(FileHandlerTest, WhatCannotBeOpenedIsAnAnswer) {
  const Reply reply = open(1, "../floats", wire::FileForm::kTensors);
  EXPECT_TRUE(reply.failed);
  EXPECT_THAT(open(1, "none").error.message, HasSubstr("no folder of serve --files"));
  EXPECT_THAT(open(1, "floats", wire::FileForm::kTensors).error.message,
              HasSubstr("floats: it is not of safetensors"));
  EXPECT_THAT(open(1, "floats", wire::FileForm::kIndex).error.message,
              HasSubstr("floats: the index is not what it should be"));
}

TEST_F(FileHandlerTest, FilesAreListedFromANameOn) {
  write("a", {});
  write("z", {1});
  const Reply all = ask({});
  wire::Reader reader(all.body);
  EXPECT_EQ(wire::decode_listed_files(reader),
            (std::vector<wire::ListedFile>{{"a", 0}, {"floats", 16}, {"z", 4}}));
  const Reply rest = ask({wire::FileAction::kList, {}, 0, 0, "floats"});
  wire::Reader rest_reader(rest.body);
  EXPECT_EQ(wire::decode_listed_files(rest_reader), (std::vector<wire::ListedFile>{{"z", 4}}));
}

// Promise 7e.
TEST(FileHandler, WithoutTheOptionEveryFileIsRefused) {
  Server server;
  FrameText frame;
  frame.query(9, wire::QueryKind::kFile);
  encode(frame.writer, wire::FileQuery{});
  EXPECT_THAT(server.apply(frame).at(0).error.message, HasSubstr("without --files"));
}

}  // namespace
}  // namespace torch_remote::server::testing
