#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/codec.h"
#include "wire/limits.h"
#include "wire/spec.h"

namespace torch_remote::wire {

// Note [Files of the server]
//
// A server with `serve --files` lets its clients read the files in some of its folders. The client
// opens a file under a number that it chooses, asks for what is in it, has storages filled from it,
// and closes it. The bytes never pass the client.
//
//   QUERY kFile  action:u8 …
//     kList     after:text               answer := n:varint (name:text length:varint)*n
//     kOpen     file:varint form:u8 name:text
//                                        answer := length:varint entries:varint
//                                                  n:varint shard:text*n
//     kEntries  file:varint first:varint
//                                        answer := n:varint (name:text spec begin:varint)*n
//                                                | n:varint (name:text shard:varint)*n     kIndex
//   FILL         storage:varint file:varint begin:varint
//   CLOSE_FILE   file:varint
//
// kList answers with files in the order of their names, from the one after `after` on; none: there
// are no more. kEntries answers in the same way from number `first` on. Such an answer ends once it
// has kFilePage bytes. The names of shards are not paged: kMaxShards limits them.
//
// CLOSE_FILE of a file that is not open does nothing: a client whose wait for kOpen was interrupted
// does not know whether there is one.
//
// FILL is numbered as a BEGIN is, and its failure stops its thread as that of a BEGIN does. It
// gives a storage all of its bytes, from byte `begin` of the file on. A file that was written to
// since it was opened is not read.
enum class FileAction : uint8_t { kList = 0, kOpen = 1, kEntries = 2 };

enum class FileForm : uint8_t {
  kBytes = 0,    // no entries
  kTensors = 1,  // of safetensors; the entries are its tensors
  kIndex = 2,    // of a checkpoint in several files; which tensor is in which
};

struct FileQuery {
  FileAction action = FileAction::kList;
  FileForm form = FileForm::kBytes;
  uint64_t file = 0;
  uint64_t first = 0;
  std::string name;  // to open; or the file after which a list begins, which may be empty
};

// The fields of the query.
void encode(Writer& writer, const FileQuery& query);
FileQuery decode_file_query(Reader& reader);

struct ListedFile {
  std::string name;
  uint64_t length = 0;
  bool operator==(const ListedFile&) const = default;
};

void encode(Writer& writer, const std::vector<ListedFile>& files);
std::vector<ListedFile> decode_listed_files(Reader& reader);

struct OpenedFile {
  uint64_t length = 0;
  uint64_t entries = 0;
  std::vector<std::string>
      shards;  // of kIndex: names of files in the folder of the index, or below it
};

void encode(Writer& writer, const OpenedFile& file);
OpenedFile decode_opened_file(Reader& reader);

struct FileTensor {
  std::string name;
  TensorSpec spec;     // contiguous
  uint64_t begin = 0;  // in the file
  bool operator==(const FileTensor&) const = default;
};

struct IndexEntry {
  std::string name;
  uint64_t shard = 0;
  bool operator==(const IndexEntry&) const = default;
};

void encode_entry(Writer& writer, const FileTensor& tensor);
void encode_entry(Writer& writer, const IndexEntry& entry);
std::vector<FileTensor> decode_file_tensors(Reader& reader);
std::vector<IndexEntry> decode_index_entries(Reader& reader);

// The entries from `first` on that one answer has.
template <typename Entry>
void encode_page(Writer& writer, const std::vector<Entry>& entries, uint64_t first) {
  Writer page;
  uint64_t count = 0;
  for (; first < entries.size() && page.size() < kFilePage; ++first, ++count)
    encode_entry(page, entries[first]);
  writer.varint(count);
  writer.raw(page.view());
}

struct Fill {
  uint64_t storage = 0;
  uint64_t file = 0;
  uint64_t begin = 0;
};

void encode(Writer& writer, const Fill& fill);
Fill decode_fill(Reader& reader);

void encode_close_file(Writer& writer, uint64_t file);
uint64_t decode_close_file(Reader& reader);

}  // namespace torch_remote::wire
