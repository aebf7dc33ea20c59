#include "wire/files.h"

#include "base/error.h"
#include "wire/messages.h"

namespace torch_remote::wire {
namespace {

template <typename Choice>
Choice decode_choice(Reader& reader, Choice last, const char* what) {
  const uint8_t value = reader.u8();
  if (value > static_cast<uint8_t>(last))
    throw ProtocolError(std::string("no ") + what + " " + std::to_string(value));
  return static_cast<Choice>(value);
}

std::string decode_file_name(Reader& reader) {
  return std::string(reader.text(kMaxFileName, "name of a file, or in a file"));
}

}  // namespace

void encode(Writer& writer, const FileQuery& query) {
  writer.u8(static_cast<uint8_t>(query.action));
  if (query.action != FileAction::kList)
    writer.varint(query.file);
  if (query.action == FileAction::kEntries)
    return writer.varint(query.first);
  if (query.action == FileAction::kOpen)
    writer.u8(static_cast<uint8_t>(query.form));
  writer.text(query.name);
}

FileQuery decode_file_query(Reader& reader) {
  FileQuery query;
  query.action = decode_choice(reader, FileAction::kEntries, "action with files");
  if (query.action != FileAction::kList)
    query.file = reader.name();
  if (query.action == FileAction::kEntries) {
    query.first = reader.varint();
    return query;
  }
  if (query.action == FileAction::kOpen)
    query.form = decode_choice(reader, FileForm::kIndex, "form of a file");
  query.name = decode_file_name(reader);
  return query;
}

void encode(Writer& writer, const std::vector<ListedFile>& files) {
  writer.varint(files.size());
  for (const ListedFile& file : files) {
    writer.text(file.name);
    writer.varint(file.length);
  }
}

std::vector<ListedFile> decode_listed_files(Reader& reader) {
  std::vector<ListedFile> files;
  for (uint64_t n = reader.count(kMaxListedFiles, "files"); n > 0; --n) {
    std::string name = decode_file_name(reader);
    files.push_back({std::move(name), reader.varint()});
  }
  return files;
}

void encode(Writer& writer, const OpenedFile& file) {
  writer.varint(file.length);
  writer.varint(file.entries);
  writer.varint(file.shards.size());
  for (const std::string& shard : file.shards)
    writer.text(shard);
}

OpenedFile decode_opened_file(Reader& reader) {
  OpenedFile file;
  file.length = reader.varint();
  file.entries = reader.count(kMaxFileEntries, "tensors in a file");
  for (uint64_t n = reader.count(kMaxShards, "files of a checkpoint"); n > 0; --n)
    file.shards.push_back(decode_file_name(reader));
  return file;
}

void encode_entry(Writer& writer, const FileTensor& tensor) {
  writer.text(tensor.name);
  encode(writer, tensor.spec);
  writer.varint(tensor.begin);
}

void encode_entry(Writer& writer, const IndexEntry& entry) {
  writer.text(entry.name);
  writer.varint(entry.shard);
}

std::vector<FileTensor> decode_file_tensors(Reader& reader) {
  std::vector<FileTensor> tensors;
  for (uint64_t n = reader.count(kMaxFileEntries, "tensors in a file"); n > 0; --n) {
    FileTensor& tensor = tensors.emplace_back();
    tensor.name = decode_file_name(reader);
    tensor.spec = decode_spec(reader);
    TensorSpec plain;
    plain.dtype = tensor.spec.dtype;
    plain.sizes = tensor.spec.sizes;
    plain.strides = contiguous_strides(plain.sizes);
    if (tensor.spec != plain)
      throw ProtocolError("a tensor in a file is not contiguous");
    check_limit("bytes of a tensor in a file", extent_bytes(tensor.spec), kMaxStorageBytes);
    tensor.begin = reader.varint();
  }
  return tensors;
}

std::vector<IndexEntry> decode_index_entries(Reader& reader) {
  std::vector<IndexEntry> entries;
  for (uint64_t n = reader.count(kMaxFileEntries, "tensors of a checkpoint"); n > 0; --n) {
    std::string name = decode_file_name(reader);
    entries.push_back({std::move(name), reader.count(kMaxShards - 1, "number of a file")});
  }
  return entries;
}

void encode(Writer& writer, const Fill& fill) {
  const Message framed(writer, Tag::kFill);
  writer.varint(fill.storage);
  writer.varint(fill.file);
  writer.varint(fill.begin);
}

Fill decode_fill(Reader& reader) {
  Fill fill;
  fill.storage = reader.name();
  fill.file = reader.name();
  fill.begin = reader.varint();
  return fill;
}

void encode_close_file(Writer& writer, uint64_t file) {
  const Message framed(writer, Tag::kCloseFile);
  writer.varint(file);
}

uint64_t decode_close_file(Reader& reader) {
  return reader.name();
}

}  // namespace torch_remote::wire
