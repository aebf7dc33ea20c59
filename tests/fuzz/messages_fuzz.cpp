// Any bytes as a message of each kind; the first byte picks the kind. What is decoded is encoded
// again and must come out as the bytes that were read: there is one way to say a thing.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.h"
#include "wire/figures.h"
#include "wire/files.h"
#include "wire/group.h"
#include "wire/messages.h"
#include "wire/operators.h"
#include "wire/peers.h"
#include "wire/program.h"
#include "wire/streams.h"
#include "wire/warning.h"

namespace {

using namespace torch_remote::wire;  // NOLINT
using Bytes = std::span<const std::byte>;

void expect_same(Bytes read, Bytes written) {
  if (!std::equal(read.begin(), read.end(), written.begin(), written.end()))
    std::abort();
}

Reader next_body(const Writer& writer) {
  Reader reader(writer.view());
  const ReceivedMessage message = next_message(reader);
  reader.finish();
  return message.body;
}

template <typename Message, Message (*decode)(Reader&), bool has_tag>
void fuzz(Bytes bytes) {
  Reader reader(bytes);
  const Message message = decode(reader);
  Writer writer;
  encode(writer, message);
  const Message again = [&] {
    Reader second = has_tag ? next_body(writer) : Reader(writer.view());
    Message back = decode(second);
    second.finish();
    return back;
  }();
  Writer twice;
  encode(twice, again);
  expect_same(writer.view(), twice.view());
}

std::vector<uint64_t> frees_in(Reader& reader) {
  std::vector<uint64_t> names;
  decode_free(reader, [&](uint64_t name) { names.push_back(name); });
  return names;
}

void fuzz_free(Bytes bytes) {
  Reader reader(bytes);
  const auto names = frees_in(reader);
  Writer writer;
  encode_free(writer, names);
  Reader second = next_body(writer);
  if (frees_in(second) != names)
    std::abort();
}

void fuzz_messages(Bytes bytes) {
  find_cancel(bytes);
  for (Reader reader(bytes); !reader.empty();)
    next_message(reader);
}

void fuzz_slots(Bytes bytes) {
  Reader reader(bytes);
  NameState names;
  while (!reader.empty()) {
    decode_storage_slot(reader, names);
    decode_name(reader, names);
  }
}

void fuzz_query(Bytes bytes) {
  Reader reader(bytes);
  decode_query(reader);
}

void fuzz_thread(Bytes bytes) {
  Reader reader(bytes);
  decode_thread(reader);
}

void fuzz_queried_call(Bytes bytes) {
  Reader reader(bytes);
  decode_queried_call(reader);
}

void fuzz_program(Bytes bytes) {
  Reader reader(bytes);
  const ProgramHead head = decode_program_head(reader);
  Writer writer;
  encode_program(writer, head.program, head.storages, head.steps, [](NameState&) {});
  Reader second = next_body(writer);
  const ProgramHead again = decode_program_head(second);
  if (again.storages.size() != head.storages.size() || again.steps != head.steps)
    std::abort();
}

void fuzz_drop(Bytes bytes) {
  Reader reader(bytes);
  decode_drop(reader);
}

void fuzz_fingerprints(Bytes bytes) {
  Reader reader(bytes);
  Writer writer;
  encode_fingerprints(writer, decode_fingerprints(reader));
  expect_same(bytes, writer.view());
}

template <typename Entry, std::vector<Entry> (*decode)(Reader&)>
void fuzz_entries(Bytes bytes) {
  Reader reader(bytes);
  const std::vector<Entry> entries = decode(reader);
  Writer writer;
  encode_page(writer, entries, 0);
  Reader second(writer.view());
  if (decode(second) != entries)
    std::abort();
}

using Fuzz = void (*)(Bytes);
constexpr std::array<Fuzz, 37> kAll = {
    fuzz<Context, decode_context, true>,
    fuzz<GeneratorMessage, decode_generator, true>,
    fuzz<Resize, decode_resize, true>,
    fuzz<Begin, decode_begin, true>,
    fuzz<Read, decode_read, true>,
    fuzz<Counters, decode_counters, false>,
    fuzz<Error, decode_error, false>,
    fuzz<std::vector<Result>, decode_results, false>,
    fuzz<TensorSpec, decode_spec, false>,
    fuzz_free,
    fuzz_slots,
    fuzz_query,
    fuzz_fingerprints,
    fuzz<OperatorQuery, decode_operator_query, false>,
    fuzz<OperatorAnswer, decode_operator_answer, false>,
    fuzz_thread,
    fuzz_messages,
    fuzz_queried_call,
    fuzz<StreamMessage, decode_stream, true>,
    fuzz<MemoryQuery, decode_memory_query, false>,
    fuzz<MemoryFigures, decode_memory_figures, false>,
    fuzz<ElapsedQuery, decode_elapsed_query, false>,
    fuzz<Telemetry, decode_telemetry, false>,
    fuzz<CallTimes, decode_call_times, false>,
    fuzz<PeerQuery, decode_peer_query, false>,
    fuzz<GroupQuery, decode_group_query, false>,
    fuzz<GroupAnswer, decode_group_answer, false>,
    fuzz<Run, decode_run, true>,
    fuzz_program,
    fuzz_drop,
    fuzz<Warning, decode_warning, true>,
    fuzz<FileQuery, decode_file_query, false>,
    fuzz<std::vector<ListedFile>, decode_listed_files, false>,
    fuzz<OpenedFile, decode_opened_file, false>,
    fuzz_entries<FileTensor, decode_file_tensors>,
    fuzz_entries<IndexEntry, decode_index_entries>,
    fuzz<Fill, decode_fill, true>,
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    kAll.at(data[0] % kAll.size())(bytes.subspan(1));
  } catch (const torch_remote::ProtocolError&) {
    // Refused.
  }
  return 0;
}
