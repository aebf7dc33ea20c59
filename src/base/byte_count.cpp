#include "base/byte_count.h"

#include <charconv>
#include <stdexcept>
#include <string>

namespace torch_remote {
namespace {

struct ByteUnit {
  std::string_view name;
  uint64_t bytes;
};

constexpr uint64_t kThousand = 1000;
constexpr ByteUnit kByteUnits[] = {
    {"B", 1},
    {"KiB", uint64_t{1} << 10},
    {"MiB", uint64_t{1} << 20},
    {"GiB", uint64_t{1} << 30},
    {"TiB", uint64_t{1} << 40},
    {"KB", kThousand},
    {"MB", kThousand* kThousand},
    {"GB", kThousand* kThousand* kThousand},
    {"TB", kThousand* kThousand* kThousand* kThousand},
};

}  // namespace

uint64_t parse_bytes(std::string_view name, std::string_view text) {
  const char* const end = text.data() + text.size();
  uint64_t count = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  const std::string_view unit_name(rest, static_cast<size_t>(end - rest));
  for (const ByteUnit& unit : kByteUnits)
    if (error == std::errc() && unit.name == unit_name && count > 0 &&
        count <= UINT64_MAX / unit.bytes)
      return count * unit.bytes;
  throw std::invalid_argument(
      std::string(name) + ": '" + std::string(text) +
      "' is not an amount of memory. Write a whole number and a unit, as in "
      "500MiB, 20GiB or 8GB.");
}

}  // namespace torch_remote
