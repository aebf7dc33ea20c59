// Files of the server in a session that is fuzzed: the steps of the script, and the files.
#include "script_files.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "script.h"
#include "wire/files.h"

namespace torch_remote::fuzz {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "torch-remote-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw_system_errno("mkdtemp", errno);
    path_ = name;
    write("bytes", std::string(4096, 'x'));
    write("good", with_header(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 16));
    write("bad", with_header(R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}})", 16));
    write("index", R"({"weight_map":{"a":"good"}})");
    shared = std::make_shared<const server::SharedFolders>(std::vector<std::string>{path_});
  }

  ~Folder() { fs::remove_all(path_); }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::shared_ptr<const server::SharedFolders> shared;

 private:
  static std::string with_header(const std::string& header, size_t data) {
    const uint64_t length = header.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof length);
    return file + header + std::string(data, 'x');
  }

  void write(const char* name, const std::string& text) const {
    std::ofstream(fs::path(path_) / name, std::ios::binary) << text;
  }

  std::string path_;
};

}  // namespace

std::shared_ptr<const server::SharedFolders> shared_files() {
  static const Folder folder;
  return folder.shared;
}

// The fields of the query.
void Script::file_query() {
  wire::FileQuery query;
  query.action = static_cast<wire::FileAction>(draw_.below(4));
  query.form = static_cast<wire::FileForm>(draw_.below(4));
  query.file = draw_.below(4);
  query.first = draw_.rarely(4) ? draw_.number() : 0;
  query.name = draw_.rarely(8) ? draw_.text() : kFiles[draw_.below(kFiles.size())];
  encode(writer_, query);
}

void Script::file() {
  end_message();
  if (draw_.rarely(4))
    return wire::encode_close_file(writer_, 1 + draw_.below(3));
  if (!draw_.rarely(2)) {
    wire::encode_query(writer_, {next_request_++, wire::QueryKind::kFile},
                       [this] { file_query(); });
    return;
  }
  encode(writer_, wire::Fill{old_name(), 1 + draw_.below(3),
                             draw_.rarely(8) ? draw_.number() : draw_.below(64)});
}

}  // namespace torch_remote::fuzz
