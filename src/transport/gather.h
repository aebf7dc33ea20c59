#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <sys/uio.h>

namespace torch_remote::transport {

// Walks over the parts of a gathered write that may take several calls. Confined to one thread.
class Gather {
 public:
  explicit Gather(std::span<const std::span<const std::byte>> parts) : parts_(parts) {
    skip_empty();
  }

  bool done() const noexcept { return parts_.empty(); }

  // What is left, as far as one system call takes it. Valid until the next call of any method.
  std::span<iovec> vectors() noexcept {
    size_t count = 0;
    size_t skipped = offset_;
    for (const std::span<const std::byte> part : parts_) {
      if (count == vectors_.size())
        break;
      // The system calls only read the bytes, but iovec has no const.
      auto* const base = const_cast<std::byte*>(part.data()) + skipped;  // NOLINT
      vectors_[count++] = iovec{base, part.size() - skipped};
      skipped = 0;
    }
    return std::span(vectors_).first(count);
  }

  void advance(size_t written) noexcept {
    offset_ += written;
    skip_empty();
  }

 private:
  void skip_empty() noexcept {
    while (!parts_.empty() && offset_ >= parts_.front().size()) {
      offset_ -= parts_.front().size();
      parts_ = parts_.subspan(1);
    }
  }

  std::span<const std::span<const std::byte>> parts_;
  size_t offset_ = 0;  // bytes of the first part that are already written
  std::array<iovec, 64> vectors_;
};

}  // namespace torch_remote::transport
