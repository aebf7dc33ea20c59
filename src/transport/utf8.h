#pragma once

#include <cstddef>
#include <span>

namespace torch_remote::transport {

// Strict: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::span<const std::byte> bytes) noexcept;

}  // namespace torch_remote::transport
