#include "server/device/out_of_memory.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace torch_remote::server {
namespace {

// With the units of PyTorch's CUDA allocator.
std::string to_text(uint64_t bytes) {
  if (bytes <= 1024)
    return std::to_string(bytes) + " bytes";
  constexpr std::array<const char*, 3> kUnits = {"KiB", "MiB", "GiB"};
  double number = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; number > 1024 && unit + 1 < kUnits.size(); ++unit)
    number /= 1024;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", number, kUnits[unit]);
  return text.data();
}

// "1.50 GiB …" in bytes; 0 for other texts.
uint64_t read_size(const char* text) {
  char* rest = nullptr;
  const double number = std::strtod(text, &rest);
  if (rest == text || !(number >= 0) || number > 1e6)
    return 0;
  constexpr std::array<std::string_view, 4> kUnits = {" bytes", " KiB", " MiB", " GiB"};
  for (size_t i = 0; i < kUnits.size(); ++i)
    if (std::string_view(rest).starts_with(kUnits[i]))
      return static_cast<uint64_t>(std::llround(std::ldexp(number, static_cast<int>(10 * i))));
  return 0;
}

uint64_t size_after(const std::string& message, std::string_view words) {
  const size_t found = message.find(words);
  return found == std::string::npos ? 0 : read_size(message.c_str() + found + words.size());
}

}  // namespace

std::string describe_shortage(const char* device, const MemoryShortage& shortage) {
  const uint64_t kept =
      shortage.reserved > shortage.allocated ? shortage.reserved - shortage.allocated : 0;
  std::string text = std::string(device) + " out of memory.";
  if (shortage.wanted != 0)
    text += " Tried to allocate " + to_text(shortage.wanted) + ".";
  return text + " The server has a total capacity of " + to_text(shortage.capacity) + " of which " +
         to_text(shortage.free) + " is free. Of the allocated memory " +
         to_text(shortage.allocated) + " is allocated by tensors, and " + to_text(kept) +
         " is reserved but unallocated.";
}

LimitReached::LimitReached(const std::string& text, const MemoryShortage& shortage)
    : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, text),
      wanted_(shortage.wanted),
      free_(shortage.free) {}

std::optional<MemoryShortage> read_shortage(const std::string& message) {
  if (message.find(" out of memory.") == std::string::npos)
    return std::nullopt;
  MemoryShortage shortage;
  shortage.wanted = size_after(message, "Tried to allocate ");
  shortage.free = size_after(message, " of which ");
  return shortage;
}

uint64_t host_figure(const std::string& name) {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with(name))
      return std::stoull(line.substr(name.size())) * 1024;
  return 0;
}

uint64_t wanted_bytes(const std::string& message) {
  constexpr std::string_view kWords = "you tried to allocate ";
  const size_t found = message.find(kWords);
  if (found == std::string::npos)
    return 0;
  uint64_t bytes = 0;
  std::from_chars(message.data() + found + kWords.size(), message.data() + message.size(), bytes);
  return bytes;
}

}  // namespace torch_remote::server
