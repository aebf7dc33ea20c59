#include "base/units.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iterator>
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

struct DurationUnit {
  std::string_view name;
  int64_t milliseconds;
};

constexpr DurationUnit kDurationUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};

// A century, so that arithmetic on time points in nanoseconds cannot overflow.
constexpr int64_t kLongest = int64_t{100} * 366 * 24 * 3'600'000;

int64_t unit_of(std::string_view name) {
  for (const DurationUnit& unit : kDurationUnits)
    if (unit.name == name)
      return unit.milliseconds;
  throw std::invalid_argument(name.empty() ? "the unit is missing"
                                           : "there is no unit '" + std::string(name) + "'");
}

std::chrono::milliseconds parse(std::string_view text) {
  const char* const end = text.data() + text.size();
  int64_t count = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  if (error == std::errc::invalid_argument)
    throw std::invalid_argument("it does not start with a number");
  if (count < 0 || text.front() == '-')
    throw std::invalid_argument("it is negative");
  if (text == "0")
    return std::chrono::milliseconds(0);
  const int64_t unit = unit_of({rest, static_cast<size_t>(end - rest)});
  if (error == std::errc::result_out_of_range || count > kLongest / unit)
    throw std::invalid_argument("it is longer than a century");
  return std::chrono::milliseconds(count * unit);
}

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

std::chrono::milliseconds parse_duration(std::string_view name, std::string_view text) {
  try {
    return parse(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string(name) + ": '" + std::string(text) +
                                "' is not a duration: " + error.what() +
                                ". Write a whole number and a unit, as in 250ms, 30s, 10m or 2h.");
  }
}

std::string duration_text(std::chrono::milliseconds duration) {
  const int64_t count = duration.count();
  for (const auto* unit = std::end(kDurationUnits);
       count != 0 && unit-- != std::begin(kDurationUnits);)
    if (count % unit->milliseconds == 0)
      return std::to_string(count / unit->milliseconds) + std::string(unit->name);
  return "0";
}

std::chrono::milliseconds duration_from_environment(const char* variable,
                                                    std::chrono::milliseconds otherwise) {
  const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr || *text == '\0' ? otherwise : parse_duration(variable, text);
}

}  // namespace torch_remote
