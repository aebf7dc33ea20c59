#include "transport/buffered_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace torch_remote::transport {
namespace {

constexpr size_t kBufferSize = 64 << 10;

}  // namespace

BufferedReader::BufferedReader(Stream& stream, std::function<void(size_t)> on_bytes)
    : stream_(stream), on_bytes_(std::move(on_bytes)), buffer_(kBufferSize) {}

bool BufferedReader::read_or_end(std::span<std::byte> into) {
  for (size_t done = 0; done < into.size();) {
    const size_t got = read_some(into.subspan(done));
    if (got == 0 && done == 0)
      return false;
    if (got == 0)
      throw ConnectionError(stream_.peer() + " closed the connection in the middle of a frame");
    done += got;
  }
  return true;
}

void BufferedReader::read(std::span<std::byte> into) {
  if (!read_or_end(into))
    throw ConnectionError(stream_.peer() + " closed the connection in the middle of a frame");
}

size_t BufferedReader::read_some(std::span<std::byte> into) {
  if (ahead_.empty() && into.size() >= kBufferSize) {
    const size_t got = stream_.read_some(into);
    on_bytes_(got);
    return got;
  }
  if (ahead_.empty()) {
    const size_t got = stream_.read_some(buffer_);
    on_bytes_(got);
    ahead_ = std::span<const std::byte>(buffer_).first(got);
  }
  const size_t count = std::min(into.size(), ahead_.size());
  if (count > 0)
    std::memcpy(into.data(), ahead_.data(), count);
  ahead_ = ahead_.subspan(count);
  return count;
}

}  // namespace torch_remote::transport
