#include "server/files/shared_folders.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::ListedFile;

std::string text_of(const SharedFile& file) {
  std::string text(file.length(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  file.check_unchanged();
  return text;
}

std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const FileError& error) {
    EXPECT_EQ(std::string_view(error.what()).find_first_of("\n\x1b"), std::string_view::npos);
    return error.what();
  }
  return "";
}

fs::path new_folder() {
  std::string name = (fs::temp_directory_path() / "shared-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw_system_errno("mkdtemp", errno);
  return name;
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// One folder is shared, and beside it is what nobody may read.
class SharedFoldersTest : public ::testing::Test {
 protected:
  SharedFoldersTest() {
    fs::create_directories(root_ / "run/deep");
    write(root_ / "a", "aa");
    write(root_ / "run/b", "bbb");
    write(base_ / "secret", "secret");
  }

  ~SharedFoldersTest() override { fs::remove_all(base_); }

  SharedFolders folders() const { return SharedFolders({root_.string()}); }

  std::string refusal_of_name(const std::string& name) const {
    return refusal_of([&] { folders().open(name); });
  }

  const fs::path base_ = new_folder();
  const fs::path root_ = base_ / "shared";
};

TEST_F(SharedFoldersTest, FilesAreReadByTheirPath) {
  EXPECT_EQ(text_of(folders().open("a")), "aa");
  EXPECT_EQ(text_of(folders().open("run/b")), "bbb");
  EXPECT_THAT(refusal_of_name("b"), HasSubstr("no folder of serve --files has the file b"));
  EXPECT_THAT(refusal_of_name("run/c"), HasSubstr("no folder of serve --files has the file run/c"));
  EXPECT_THAT(refusal_of_name("a/b"), HasSubstr("a is a file"));
}

TEST_F(SharedFoldersTest, TheFirstFolderThatHasAFileHasIt) {
  fs::create_directories(base_ / "other/run");
  write(base_ / "other/a", "shadowed");
  write(base_ / "other/run/c", "ccc");
  const SharedFolders both({root_.string(), (base_ / "other").string()});
  EXPECT_EQ(text_of(both.open("a")), "aa");
  EXPECT_EQ(text_of(both.open("run/c")), "ccc");
  EXPECT_THAT(both.list(),
              ElementsAre(ListedFile{"a", 2}, ListedFile{"run/b", 3}, ListedFile{"run/c", 3}));
}

// Promise 7e.
TEST_F(SharedFoldersTest, NoNameLeadsOut) {
  for (const char* const name : {"../secret", "run/../../secret", "..", ".", "", "run/", "run//b",
                                 "./a", "run/./b", "/etc/passwd"})
    EXPECT_NE(refusal_of_name(name), "") << name;
  EXPECT_NE(refusal_of_name((base_ / "secret").string()), "");
}

// Promise 7e.
TEST_F(SharedFoldersTest, NoSymbolicLinkIsFollowed) {
  fs::create_symlink(base_ / "secret", root_ / "out");
  fs::create_symlink(base_, root_ / "up");
  fs::create_symlink("a", root_ / "inside");
  fs::create_symlink("run", root_ / "folder");
  for (const char* const name : {"out", "up/secret", "inside", "folder/b"})
    EXPECT_THAT(refusal_of_name(name), HasSubstr("is a symbolic link, which is not followed"));
  EXPECT_THAT(folders().list(), ElementsAre(ListedFile{"a", 2}, ListedFile{"run/b", 3}));
}

TEST_F(SharedFoldersTest, ASharedFolderMayBeNamedByALink) {
  fs::create_symlink(root_, base_ / "link");
  EXPECT_EQ(shared_folder((base_ / "link").string()), fs::canonical(root_).string());
  EXPECT_THROW(shared_folder((base_ / "none").string()), std::invalid_argument);
  EXPECT_THROW(shared_folder((base_ / "secret").string()), std::invalid_argument);
  EXPECT_THROW(SharedFolders({(base_ / "none").string()}), std::invalid_argument);
}

// Promise 7e.
TEST_F(SharedFoldersTest, WhatIsNoRegularFileIsNotOpened) {
  ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of_name("fifo"), HasSubstr("is a FIFO"));  // and nobody waits for its writer
  EXPECT_THAT(refusal_of_name("run"), HasSubstr("is a folder"));
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = (root_ / "socket").string();
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(socket);
  EXPECT_THAT(refusal_of_name("socket"), HasSubstr("is a socket"));
  const SharedFolders devices({"/dev"});
  EXPECT_THAT(refusal_of([&] { devices.open("null"); }), HasSubstr("is a device"));
  EXPECT_THAT(refusal_of([&] { SharedFile(Fd(::open("/dev/null", O_RDONLY)), "x"); }),
              HasSubstr("is a device"));
  EXPECT_THAT(folders().list(), ElementsAre(ListedFile{"a", 2}, ListedFile{"run/b", 3}));
}

// Promise 7e.
TEST_F(SharedFoldersTest, NamesThatCouldHarmATerminalAreRefusedAndNotListed) {
  for (const char* const name : {"x\ny", "x\x1b[2J", "x\xff"}) {
    write(root_ / name, "x");
    EXPECT_THAT(refusal_of_name(name), HasSubstr("control character"));
  }
  using std::string_literals::operator""s;
  EXPECT_THAT(refusal_of_name("a\0b"s), HasSubstr("control character"));
  EXPECT_THAT(folders().list(), ElementsAre(ListedFile{"a", 2}, ListedFile{"run/b", 3}));
}

// Promise 7e.
TEST_F(SharedFoldersTest, AFileThatIsChangedWhileItIsReadIsRefused) {
  const SharedFile file = folders().open("run/b");
  EXPECT_EQ(::truncate((root_ / "run/b").c_str(), 1), 0);
  EXPECT_THAT(refusal_of([&] { text_of(file); }), HasSubstr("became shorter"));
  EXPECT_THAT(refusal_of([&] { file.check_unchanged(); }), HasSubstr("was changed"));
  const SharedFile other = folders().open("a");
  const timespec times[2]{{1, 0}, {1, 0}};  // as a write some time later sets it
  ASSERT_EQ(::utimensat(AT_FDCWD, (root_ / "a").c_str(), times, 0), 0);
  EXPECT_THAT(refusal_of([&] { other.check_unchanged(); }), HasSubstr("was changed"));
}

TEST_F(SharedFoldersTest, AFileThatIsReplacedStaysTheOneThatWasOpened) {
  const SharedFile file = folders().open("a");
  write(root_ / "new", "new");
  fs::rename(root_ / "new", root_ / "a");
  EXPECT_EQ(text_of(file), "aa");
  EXPECT_EQ(text_of(folders().open("a")), "new");
}

// Promise 7e.
TEST_F(SharedFoldersTest, TooManyFilesAreNotListed) {
  const SharedFolders twice({root_.string(), root_.string()});  // a, run, run/b and run/deep
  EXPECT_EQ(twice.list(8).size(), 2);
  EXPECT_THAT(refusal_of([&] { twice.list(7); }), HasSubstr("more files than a list may have"));
}

}  // namespace
}  // namespace torch_remote::server
