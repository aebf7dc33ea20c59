#include "transport/delay_spec.h"

#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>

namespace torch_remote::transport {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw std::invalid_argument("'" + std::string(text) +
                              "' is not a delay: write rtt_ms[,mbit_s[,jitter_ms]] with numbers "
                              "that are not negative, as in 20 or "
                              "20,1000 or 20,1000,2.");
}

double parse_number(std::string_view whole, std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value) || value < 0 || value > 1e9)
    refuse(whole);
  return value;
}

std::chrono::microseconds from_milliseconds(double value) {
  return std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::duration<double, std::milli>(value));
}

}  // namespace

DelaySpec parse_delay(std::string_view text) {
  double fields[3] = {0, 0, 0};
  std::string_view rest = text;
  for (double& field : fields) {
    const size_t comma = rest.find(',');
    field = parse_number(text, rest.substr(0, comma));
    if (comma == std::string_view::npos)
      return {from_milliseconds(fields[0]), fields[1], from_milliseconds(fields[2])};
    rest = rest.substr(comma + 1);
  }
  refuse(text);
}

}  // namespace torch_remote::transport
