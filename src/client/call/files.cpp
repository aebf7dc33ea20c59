#include "client/call/files.h"

#include <atomic>
#include <iterator>

#include "client/memory/storage.h"
#include "client/process/lines.h"
#include "client/process/process.h"
#include "client/process/recording.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

constexpr const char* kFileOfTheServer = "a file of the server";

// Never used twice, in any session.
uint64_t new_number() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Session& session_with_files(DevicePlace place) {
  check_not_recording(kFileOfTheServer);
  Session& session = *place.session;
  TORCH_CHECK_NOT_IMPLEMENTED(
      (session.welcome().capabilities & wire::kFilesCapability) != 0, "the server of ",
      session.describe(place.device),
      " lets nobody read its files: start one of this version with --files DIR");
  return session;
}

std::vector<std::byte> ask(Session& session, const wire::FileQuery& query) {
  return session.query(wire::QueryKind::kFile, kFileOfTheServer,
                       [&](wire::Writer& writer) { encode(writer, query); });
}

void close_file(Session& session, uint64_t number) noexcept {
  if (in_forked_child() || is_exiting() || session.link().is_lost())
    return;
  try {
    Submission at(session, IfLost::kWrite);
    wire::encode_close_file(at.writer(), number);
  } catch (const std::exception&) {
    // There is no memory for the message: the file is closed with the session.
  }
}

wire::OpenedFile open(Session& session, uint64_t number, const std::string& name,
                      wire::FileForm form) {
  TORCH_CHECK_VALUE(name.size() <= wire::kMaxFileName, "the name of a file has ", name.size(),
                    " bytes, and may have ", wire::kMaxFileName);
  try {
    const auto body = ask(session, {wire::FileAction::kOpen, form, number, 0, name});
    return decode_answer(session, body, wire::decode_opened_file);
  } catch (...) {
    close_file(session, number);  // the server may have opened it: Ctrl-C ends the wait only
    throw;
  }
}

}  // namespace

std::vector<wire::ListedFile> list_files(DevicePlace place) {
  Session& session = session_with_files(place);
  std::vector<wire::ListedFile> files;
  while (true) {
    wire::FileQuery query;
    query.name = files.empty() ? "" : files.back().name;
    const auto body = ask(session, query);
    auto page = decode_answer(session, body, [&](wire::Reader& reader) {
      auto decoded = wire::decode_listed_files(reader);
      const std::string* before = &query.name;
      for (const wire::ListedFile& file : decoded) {
        if (file.name <= *before)
          throw ProtocolError("a list of files is not in the order of their names");
        before = &file.name;
      }
      wire::check_limit("files", files.size() + decoded.size(), wire::kMaxListedFiles);
      return decoded;
    });
    if (page.empty())
      return files;
    files.insert(files.end(), std::make_move_iterator(page.begin()),
                 std::make_move_iterator(page.end()));
  }
}

RemoteFile::RemoteFile(DevicePlace place, c10::DeviceIndex index, const std::string& name,
                       wire::FileForm form)
    : index_(index),
      session_(session_with_files(place)),
      number_(new_number()),
      opened_(open(session_, number_, name, form)) {}

RemoteFile::~RemoteFile() {
  close_file(session_, number_);
}

template <typename Entry>
std::vector<Entry> RemoteFile::entries(std::vector<Entry> (*decode)(wire::Reader&)) const {
  std::vector<Entry> all;
  while (all.size() < opened_.entries) {
    wire::FileQuery query;
    query.action = wire::FileAction::kEntries;
    query.file = number_;
    query.first = all.size();
    const auto body = ask(session_, query);
    auto page = decode_answer(session_, body, [&](wire::Reader& reader) {
      auto decoded = decode(reader);
      if (decoded.empty() || decoded.size() > opened_.entries - all.size())
        throw ProtocolError("a file has other tensors than the server said");
      return decoded;
    });
    all.insert(all.end(), std::make_move_iterator(page.begin()),
               std::make_move_iterator(page.end()));
  }
  return all;
}

std::vector<wire::FileTensor> RemoteFile::tensors() const {
  auto all = entries(wire::decode_file_tensors);
  for (const wire::FileTensor& tensor : all)
    if (tensor.begin > length() || wire::extent_bytes(tensor.spec) > length() - tensor.begin)
      refuse_answer(session_, ProtocolError("a tensor in a file is not inside the file"));
  return all;
}

std::vector<wire::IndexEntry> RemoteFile::index_entries() const {
  auto all = entries(wire::decode_index_entries);
  for (const wire::IndexEntry& entry : all)
    if (entry.shard >= shards().size())
      refuse_answer(session_, ProtocolError("a tensor is in a file that the index does not name"));
  return all;
}

at::Tensor RemoteFile::read(const wire::TensorSpec& spec, uint64_t begin) const {
  check_not_recording(kFileOfTheServer);
  session_.begin_call();
  const uint64_t nbytes = wire::extent_bytes(spec);
  const c10::Device device(c10::kPrivateUse1, index_);
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, allocate_remote(nbytes, index_),
                       c10::GetAllocator(c10::kPrivateUse1), true);
  at::Tensor tensor = tensor_on(std::move(storage), spec);
  if (nbytes == 0)
    return tensor;
  StorageRecord& record = *record_of(tensor);
  TORCH_CHECK(session_of(record) == &session_,
              "the server that has the file was replaced by another");
  const CallSite site{current_line(), record.server_device};
  {
    Submission at(session_);
    at.announce(record, site);
    const auto numbered = at.number_message(site);
    record.note_made(numbered.call, numbered.thread);
    encode(at.writer(), wire::Fill{record.name, number_, begin});
  }
  if (is_blocking())
    session_.synchronize({.is_failed_call = true});
  return tensor;
}

at::Tensor RemoteFile::read_elements(at::ScalarType dtype, uint64_t begin, uint64_t count) const {
  const auto type = marshal::to_wire(dtype);
  TORCH_CHECK_TYPE(type.has_value(), "no file has elements of ", dtype);
  const uint64_t size = wire::element_bytes(*type);
  const uint64_t elements = length() / size;
  TORCH_CHECK_INDEX(begin <= elements && count <= elements - begin, "elements from ", begin,
                    " on of a file with ", elements);
  wire::TensorSpec spec;
  spec.dtype = *type;
  spec.sizes = {static_cast<int64_t>(count)};
  spec.strides = {1};
  return read(spec, begin * size);
}

}  // namespace torch_remote::client
