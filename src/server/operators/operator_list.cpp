#include "server/operators/operator_list.h"

#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "marshal/schemas.h"

namespace torch_remote::server {
namespace {

constexpr std::string_view kHeading = "== ";
constexpr std::string_view kRefusedHeading = "refused: ";

struct Row {
  Listed listed;
  std::string_view overloads;  // "- out"
};

using Rows = std::unordered_multimap<std::string_view, Row>;

Listed read_heading(std::string_view heading) {
  if (heading == "runs")
    return {OperatorClass::kRuns, {}};
  if (heading == "trusts")
    return {OperatorClass::kUnchecked, {}};
  if (heading.starts_with(kRefusedHeading))
    return {OperatorClass::kRefused, heading.substr(kRefusedHeading.size())};
  throw std::logic_error("operator_list.txt has the heading " + std::string(heading));
}

Rows read_rows(std::span<const std::string_view> lines) {
  Rows rows;
  rows.reserve(lines.size());
  Listed section;
  for (const std::string_view line : lines) {
    if (line.empty() || line.starts_with('#'))
      continue;
    if (line.starts_with(kHeading)) {
      section = read_heading(line.substr(kHeading.size()));
      continue;
    }
    const size_t end = line.find(' ');
    rows.emplace(line.substr(0, end), Row{section, line.substr(end + 1)});
  }
  return rows;
}

bool has_word(std::string_view words, std::string_view wanted) {
  while (!words.empty()) {
    const size_t end = words.find(' ');
    if (words.substr(0, end) == wanted)
      return true;
    words = end == words.npos ? std::string_view() : words.substr(end + 1);
  }
  return false;
}

}  // namespace

Listed find_listed(std::string_view name) {
  static const Rows kRows = read_rows(operator_lines());
  if (!name.starts_with(marshal::kAten))
    return {};
  name.remove_prefix(marshal::kAten.size());
  const size_t dot = name.find('.');
  const std::string_view overload = dot == name.npos ? "-" : name.substr(dot + 1);
  const auto [begin, end] = kRows.equal_range(name.substr(0, dot));
  for (auto row = begin; row != end; ++row)
    if (has_word(row->second.overloads, overload))
      return row->second.listed;
  return {};
}

}  // namespace torch_remote::server
