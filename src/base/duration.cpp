#include "base/duration.h"

#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace torch_remote {
namespace {

struct Unit {
  std::string_view name;
  int64_t milliseconds;
};

constexpr Unit kUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};

// A century: far from overflow in any arithmetic on time points in nanoseconds.
constexpr int64_t kLongest = int64_t{100} * 366 * 24 * 3'600'000;

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw std::invalid_argument("'" + std::string(text) + "' is not a duration: " + std::string(why) +
                              ". Write a whole number and a unit, as in 250ms, 30s, 10m or 2h.");
}

int64_t unit_of(std::string_view text, std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) {
      return unit.milliseconds;
    }
  }
  if (name.empty()) {
    refuse(text, "the unit is missing");
  }
  refuse(text, "there is no unit '" + std::string(name) + "'");
}

}  // namespace

std::chrono::milliseconds parse_duration(std::string_view text) {
  const char* const end = text.data() + text.size();
  int64_t count = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  if (error == std::errc::invalid_argument) {
    refuse(text, "it does not start with a number");
  }
  if (count < 0 || text.front() == '-') {
    refuse(text, "it is negative");
  }
  if (text == "0") {
    return std::chrono::milliseconds(0);
  }
  const int64_t unit = unit_of(text, std::string_view(rest, static_cast<size_t>(end - rest)));
  if (error == std::errc::result_out_of_range || count > kLongest / unit) {
    refuse(text, "it is longer than a century");
  }
  return std::chrono::milliseconds(count * unit);
}

}  // namespace torch_remote
