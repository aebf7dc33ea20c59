#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace torch_remote {

// Owns a file descriptor. Externally synchronised.
class Fd {
 public:
  Fd() = default;

  explicit Fd(int descriptor) noexcept : descriptor_(descriptor) {}

  ~Fd() { reset(); }

  Fd(Fd&& other) noexcept : descriptor_(other.release()) {}

  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  int get() const noexcept { return descriptor_; }

  explicit operator bool() const noexcept { return descriptor_ >= 0; }

  // The caller now has to close the descriptor.
  [[nodiscard]] int release() noexcept { return std::exchange(descriptor_, -1); }

  void reset() noexcept;  // closes it now

 private:
  int descriptor_ = -1;
};

// Owns the descriptor that a system call has just returned. If it is negative, throws the error of
// `what`.
Fd owned(int descriptor, std::string_view what);

// A new file for its owner only, to append to: who gets the descriptor does not write over what is
// there. Empty on failure, with errno set.
Fd make_new_file(const std::string& path);

}  // namespace torch_remote
