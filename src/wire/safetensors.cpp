#include "wire/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/json_reader.h"
#include "base/text.h"

namespace torch_remote::wire {
namespace {

constexpr std::string_view kHowToConvert =
    "it is a file of torch.save, which is a pickle: to read it can run a program that is in it. "
    "Convert it where it is trusted, with python -c \"import sys, torch, safetensors.torch as s; "
    "s.save_file({k: v.clone().contiguous() for k, v in torch.load(sys.argv[1], "
    "map_location='cpu', weights_only=True).items()}, sys.argv[2])\" FILE FILE.safetensors";

struct NamedDtype {
  std::string_view name;
  Dtype dtype;
};

constexpr auto kDtypes = std::to_array<NamedDtype>({
    {"BOOL", Dtype::kBool},
    {"U8", Dtype::kUint8},
    {"I8", Dtype::kInt8},
    {"F8_E5M2", Dtype::kFloat8E5M2},
    {"F8_E4M3", Dtype::kFloat8E4M3FN},
    {"F8_E8M0", Dtype::kFloat8E8M0FNU},
    {"F8_E5M2FNUZ", Dtype::kFloat8E5M2FNUZ},
    {"F8_E4M3FNUZ", Dtype::kFloat8E4M3FNUZ},
    {"I16", Dtype::kInt16},
    {"U16", Dtype::kUint16},
    {"F16", Dtype::kFloat16},
    {"BF16", Dtype::kBfloat16},
    {"I32", Dtype::kInt32},
    {"U32", Dtype::kUint32},
    {"F32", Dtype::kFloat32},
    {"F64", Dtype::kFloat64},
    {"I64", Dtype::kInt64},
    {"U64", Dtype::kUint64},
    {"C64", Dtype::kComplex64},
    {"F4", Dtype::kFloat4E2M1FNX2},  // two in a byte, beside each other in the last dimension
});

// For people: short, and without what could harm a terminal.
std::string shown(std::string_view text) {
  constexpr size_t kLongest = 200;
  const std::string_view cut = cut_text(text, kLongest);
  return escaped(cut) + (cut.size() < text.size() ? "…" : "");
}

[[noreturn]] void refuse(std::string_view tensor, const std::string& what) {
  throw FileContentError("its tensor " + shown(tensor) + " " + what);
}

void check_name(std::string_view name, const char* what) {
  if (name.size() > kMaxFileName)
    throw FileContentError(std::string("it has the name of a ") + what + " with " +
                           std::to_string(name.size()) + " bytes, and at most " +
                           std::to_string(kMaxFileName) + " are read: " + shown(name));
  if (needs_escapes(name))
    throw FileContentError(std::string("it has the name of a ") + what +
                           " with a control character: " + shown(name));
}

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// A tensor as the header has it.
struct Described {
  FileTensor tensor;
  Range range;
};

Dtype find_dtype(std::string_view tensor, std::string_view name) {
  const auto* const found =
      std::ranges::find_if(kDtypes, [&](const NamedDtype& each) { return each.name == name; });
  if (found == kDtypes.end())
    refuse(tensor, "has the dtype " + shown(name) + ", which torch does not have");
  return found->dtype;
}

std::vector<int64_t> read_shape(JsonReader& json, std::string_view tensor) {
  std::vector<int64_t> sizes;
  uint64_t elements = 1;  // as if no size were 0
  json.array([&] {
    const uint64_t size = json.whole_number();
    if (sizes.size() == kMaxDimensions)
      refuse(tensor, "has more than " + std::to_string(kMaxDimensions) + " dimensions");
    // So that strides can be computed, also those of a tensor without elements.
    if (__builtin_mul_overflow(elements, std::max<uint64_t>(size, 1), &elements) ||
        elements > kMaxStorageBytes)
      refuse(tensor, "has more elements than a tensor can have");
    sizes.push_back(static_cast<int64_t>(size));
  });
  return sizes;
}

Range read_range(JsonReader& json, std::string_view tensor) {
  std::vector<uint64_t> numbers;
  json.array([&] {
    if (numbers.size() == 2)
      refuse(tensor, "has more than two offsets");
    numbers.push_back(json.whole_number());
  });
  if (numbers.size() != 2)
    refuse(tensor, "does not have two offsets");
  return {numbers[0], numbers[1]};
}

// Two numbers of four bits are one element of torch's.
void halve_last(std::vector<int64_t>& sizes, std::string_view tensor) {
  if (sizes.empty() || sizes.back() % 2 != 0)
    refuse(tensor, "has half bytes in its last dimension");
  sizes.back() /= 2;
}

Described read_tensor(JsonReader& json, std::string name) {
  Described read;
  std::string dtype;
  std::optional<std::vector<int64_t>> sizes;
  std::optional<Range> range;
  json.object([&](const std::string& key) {
    if (key == "dtype" && dtype.empty())
      dtype = json.string();
    else if (key == "shape" && !sizes)
      sizes = read_shape(json, name);
    else if (key == "data_offsets" && !range)
      range = read_range(json, name);
    else if (key == "dtype" || key == "shape" || key == "data_offsets")
      refuse(name, "has \"" + key + "\" twice");
    else
      json.skip();
  });
  if (dtype.empty() || !sizes || !range)
    refuse(name, "lacks its dtype, its shape or its offsets");
  TensorSpec& spec = read.tensor.spec;
  spec.dtype = find_dtype(name, dtype);
  spec.sizes = std::move(*sizes);
  if (spec.dtype == Dtype::kFloat4E2M1FNX2)
    halve_last(spec.sizes, name);
  spec.strides = contiguous_strides(spec.sizes);
  read.range = *range;
  read.tensor.name = std::move(name);
  return read;
}

// The tensors are beside each other, and fill the data. `begins`: where in the file.
void place(std::vector<Described>& described, uint64_t begins, uint64_t data_length) {
  std::ranges::stable_sort(described, [](const Described& a, const Described& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  uint64_t end = 0;
  for (Described& each : described) {
    const std::string& name = each.tensor.name;
    const Range range = each.range;
    if (range.begin < end)
      refuse(name, "overlaps the one before it");
    if (range.begin > end)
      refuse(name, "begins behind bytes that are no tensor's");
    if (range.end < range.begin || range.end > data_length)
      refuse(name, "does not end inside the file");
    const uint64_t bytes = extent_bytes(each.tensor.spec);
    if (range.end - range.begin != bytes)
      refuse(name, "needs " + std::to_string(bytes) + " bytes by its shape and dtype, and has " +
                       std::to_string(range.end - range.begin) + " by its offsets");
    end = range.end;
    each.tensor.begin = begins + range.begin;
  }
  if (end != data_length)
    throw FileContentError("its tensors have " + std::to_string(end) + " bytes, and " +
                           std::to_string(data_length) + " follow the header");
}

void check_entries(size_t entries) {
  if (entries == kMaxFileEntries)
    throw FileContentError("it names more than " + std::to_string(kMaxFileEntries) + " tensors");
}

// Calls `read()` and makes its JsonError one about the file.
template <typename Read>
void read_json(const char* what, Read&& read) {
  try {
    read();
  } catch (const JsonError& error) {
    throw FileContentError(std::string(what) + " is not what it should be: " + error.what());
  }
}

bool is_of_torch_save(std::span<const std::byte> head) {
  constexpr std::array<std::string_view, 2> kBegins{"PK\x03\x04", "\x80\x02\x8a\x0a"};
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  return std::ranges::any_of(kBegins,
                             [&](std::string_view each) { return text.starts_with(each); });
}

}  // namespace

uint64_t header_length(std::span<const std::byte> head, uint64_t file_length) {
  if (is_of_torch_save(head))
    throw FileContentError(std::string(kHowToConvert));
  if (head.size() < kFileHeadBytes || file_length < kFileHeadBytes)
    throw FileContentError("it is not of safetensors: it has " + std::to_string(file_length) +
                           " bytes");
  uint64_t length = 0;
  std::memcpy(&length, head.data(), sizeof length);
  if (length > file_length - kFileHeadBytes)
    throw FileContentError("it is not of safetensors: its header would have " +
                           std::to_string(length) + " bytes, and the file has " +
                           std::to_string(file_length));
  if (length > kMaxFileHeader)
    throw FileContentError("its header has " + std::to_string(length) + " bytes, and at most " +
                           std::to_string(kMaxFileHeader) + " are read");
  return length;
}

std::vector<FileTensor> parse_tensors(std::string_view header, uint64_t file_length) {
  std::vector<Described> described;
  std::set<std::string> names;  // no hash table, in which a stranger's names could collide
  read_json("its header", [&] {
    JsonReader json(header);
    json.object([&](std::string name) {
      if (name == "__metadata__")
        return json.object([&](const std::string& /*key*/) { json.string(); });
      check_name(name, "tensor");
      check_entries(described.size());
      if (!names.insert(name).second)
        refuse(name, "is there twice");
      described.push_back(read_tensor(json, std::move(name)));
    });
    json.finish();
  });
  const uint64_t begins = kFileHeadBytes + header.size();
  if (file_length < begins)
    throw FileContentError("it ends inside its header");
  place(described, begins, file_length - begins);
  std::vector<FileTensor> tensors;
  tensors.reserve(described.size());
  for (Described& each : described)
    tensors.push_back(std::move(each.tensor));
  return tensors;
}

CheckpointIndex parse_index(std::string_view text) {
  CheckpointIndex index;
  std::map<std::string, uint64_t> shards;
  std::set<std::string> names;
  bool has_map = false;
  const auto read_entry = [&](JsonReader& json, std::string name) {
    check_name(name, "tensor");
    check_entries(index.entries.size());
    if (!names.insert(name).second)
      refuse(name, "is there twice");
    std::string file = json.string();
    check_name(file, "file");
    const auto [found, is_new] = shards.emplace(file, index.shards.size());
    if (is_new) {
      if (index.shards.size() == kMaxShards)
        throw FileContentError("it names more than " + std::to_string(kMaxShards) + " files");
      index.shards.push_back(std::move(file));
    }
    index.entries.push_back({std::move(name), found->second});
  };
  read_json("the index", [&] {
    JsonReader json(text);
    json.object([&](const std::string& key) {
      if (key != "weight_map")
        return json.skip();
      if (std::exchange(has_map, true))
        throw FileContentError("it has \"weight_map\" twice");
      json.object([&](std::string name) { read_entry(json, std::move(name)); });
    });
    json.finish();
  });
  if (!has_map)
    throw FileContentError("it is no index of a checkpoint: it has no \"weight_map\"");
  return index;
}

}  // namespace torch_remote::wire
