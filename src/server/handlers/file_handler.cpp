// FILL, CLOSE_FILE and QUERY kFile: Note [Files of the server] in wire/files.h.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/Parallel.h>

#include "base/hash.h"
#include "server/executor/storage_fill.h"
#include "server/files/shared_folders.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"
#include "wire/files.h"
#include "wire/safetensors.h"

namespace torch_remote::server {
namespace {

// How much of a file one thread reads at least.
constexpr int64_t kReadGrain = int64_t{4} << 20;

// A file that the client has opened, and what it says is in it.
struct OpenFile {
  SharedFile file;
  uint64_t header = 0;  // bytes of which the entries were made
  std::vector<wire::FileTensor> tensors{};
  wire::CheckpointIndex index{};
};

class FileHandler : public Handler {
 public:
  FileHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&FileHandler::on_fill>(wire::Tag::kFill, *this);
    table.add<&FileHandler::on_close>(wire::Tag::kCloseFile, *this);
    table.add<&FileHandler::query>(wire::QueryKind::kFile, *this);
  }

 private:
  void on_fill(wire::Reader& reader);
  void on_close(wire::Reader& reader);
  void query(uint64_t request, wire::Reader& reader);

  // What the queries are answered with.
  void list(wire::Writer& body, const std::string& after) const;
  void open(wire::Writer& body, const wire::FileQuery& query);
  void entries(wire::Writer& body, const wire::FileQuery& query) const;

  OpenFile read_tensors(SharedFile file) const;
  OpenFile read_index(SharedFile file) const;
  // `length` bytes of the file after `skipped`. Throws FileError where the headers of open files
  // are more than is kept.
  std::string read_header(const SharedFile& file, uint64_t skipped, uint64_t length) const;
  const OpenFile& find(uint64_t file) const;

  SessionState& session_;
  std::unordered_map<uint64_t, OpenFile, NameHash> open_;  // by the client's number
  uint64_t headers_ = 0;                                   // bytes, of all of them
};

void read_in_parts(const SharedFile& file, uint64_t begin, std::span<std::byte> bytes) {
  at::parallel_for(
      0, static_cast<int64_t>(bytes.size()), kReadGrain, [&](int64_t from, int64_t to) {
        const auto offset = static_cast<size_t>(from);
        file.read(begin + offset, bytes.subspan(offset, static_cast<size_t>(to) - offset));
      });
  file.check_unchanged();
}

const OpenFile& FileHandler::find(uint64_t file) const {
  const auto found = open_.find(file);
  if (found == open_.end())
    throw ProtocolError("no file is open under the number " + std::to_string(file));
  return found->second;
}

void FileHandler::on_fill(wire::Reader& reader) {
  const wire::Fill fill = wire::decode_fill(reader);
  const SharedFile& file = find(fill.file).file;
  const uint64_t length = session_.storages.find(fill.storage).nbytes;
  if (fill.begin > file.length() || length > file.length() - fill.begin)
    throw ProtocolError("a storage is filled from beyond the end of a file");
  const auto put_in = [&](Entry& entry) {
    server::fill(session_.storages, session_.streams, session_.uploads.memory(), entry,
                 [&](uint64_t offset, std::span<std::byte> bytes) {
                   read_in_parts(file, fill.begin + offset, bytes);
                 });
  };
  session_.executor.upload(fill.storage, length, put_in, "load");
}

void FileHandler::on_close(wire::Reader& reader) {
  const auto found = open_.find(wire::decode_close_file(reader));
  if (found == open_.end())
    return;
  headers_ -= found->second.header;
  open_.erase(found);
}

void FileHandler::query(uint64_t request, wire::Reader& reader) {
  const wire::FileQuery query = wire::decode_file_query(reader);
  wire::Writer body;
  try {
    if (session_.options.files == nullptr)
      throw FileError("this server was started without --files");
    if (query.action == wire::FileAction::kList)
      list(body, query.name);
    else if (query.action == wire::FileAction::kOpen)
      open(body, query);
    else
      entries(body, query);
  } catch (...) {
    return answer_failure(session_.replies, request, std::current_exception(), "files");
  }
  session_.replies.reply(request, body.view());
}

void FileHandler::list(wire::Writer& body, const std::string& after) const {
  const std::vector<wire::ListedFile> all = session_.options.files->list();
  const auto first = std::ranges::upper_bound(all, after, {}, &wire::ListedFile::name);
  std::vector<wire::ListedFile> page;
  uint64_t bytes = 0;
  for (auto file = first; file != all.end() && bytes < wire::kFilePage; ++file) {
    bytes += file->name.size();
    page.push_back(*file);
  }
  wire::encode(body, page);
}

void FileHandler::open(wire::Writer& body, const wire::FileQuery& query) {
  if (open_.contains(query.file))
    throw ProtocolError("the number of a file is taken");
  if (open_.size() == wire::kMaxOpenFiles)
    throw FileError("at most " + std::to_string(wire::kMaxOpenFiles) +
                    " files are open in a session");
  SharedFile file = session_.options.files->open(query.name);
  OpenFile opened = query.form == wire::FileForm::kTensors ? read_tensors(std::move(file))
                    : query.form == wire::FileForm::kIndex ? read_index(std::move(file))
                                                           : OpenFile{std::move(file)};
  wire::encode(body, wire::OpenedFile{opened.file.length(),
                                      std::max(opened.tensors.size(), opened.index.entries.size()),
                                      opened.index.shards});
  headers_ += opened.header;
  open_.emplace(query.file, std::move(opened));
}

std::string FileHandler::read_header(const SharedFile& file, uint64_t skipped,
                                     uint64_t length) const {
  if (length > wire::kMaxFileHeader - headers_)
    throw FileError(file.name() + ": the headers and indices of open files would have " +
                    std::to_string(headers_ + length) + " bytes, and at most " +
                    std::to_string(wire::kMaxFileHeader) + " are kept");
  std::string text(length, '\0');
  file.read(skipped, std::as_writable_bytes(std::span(text)));
  file.check_unchanged();
  return text;
}

OpenFile FileHandler::read_tensors(SharedFile file) const {
  try {
    std::string head(std::min(file.length(), wire::kFileHeadBytes), '\0');
    file.read(0, std::as_writable_bytes(std::span(head)));
    const uint64_t length = wire::header_length(std::as_bytes(std::span(head)), file.length());
    const std::string header = read_header(file, wire::kFileHeadBytes, length);
    std::vector<wire::FileTensor> tensors = wire::parse_tensors(header, file.length());
    return {std::move(file), length, std::move(tensors)};
  } catch (const wire::FileContentError& error) {
    throw FileError(file.name() + ": " + error.what());
  }
}

OpenFile FileHandler::read_index(SharedFile file) const {
  try {
    const uint64_t length = file.length();
    wire::CheckpointIndex index = wire::parse_index(read_header(file, 0, length));
    return {std::move(file), length, {}, std::move(index)};
  } catch (const wire::FileContentError& error) {
    throw FileError(file.name() + ": " + error.what());
  }
}

void FileHandler::entries(wire::Writer& body, const wire::FileQuery& query) const {
  const OpenFile& file = find(query.file);
  if (file.index.entries.empty())
    wire::encode_page(body, file.tensors, query.first);
  else
    wire::encode_page(body, file.index.entries, query.first);
}

}  // namespace

std::unique_ptr<Handler> make_file_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<FileHandler>(session, table);
}

}  // namespace torch_remote::server
