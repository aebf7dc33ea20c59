#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <c10/util/Exception.h>

namespace torch_remote::server {

// What an OutOfMemoryError tells, in bytes.
struct MemoryShortage {
  uint64_t wanted = 0;  // 0: not known
  uint64_t capacity = 0;
  uint64_t free = 0;
  uint64_t allocated = 0;  // by tensors
  uint64_t reserved = 0;   // for tensors and later ones
};

// "CPU out of memory. Tried to allocate 2.00 GiB. ...": as PyTorch's CUDA allocator says it.
// Programs that look for a batch size that fits search for " out of memory.".
std::string describe_shortage(const char* device, const MemoryShortage& shortage);

// A session has reached its limit of memory. Its text begins with describe_shortage().
class LimitReached : public c10::OutOfMemoryError {
 public:
  LimitReached(const std::string& text, const MemoryShortage& shortage);

  uint64_t wanted() const { return wanted_; }

  uint64_t free() const { return free_; }

 private:
  uint64_t wanted_;
  uint64_t free_;
};

// What was wanted and free, from an error of PyTorch's CUDA allocator, which says it in words only.
// Nothing if the text is another's; 0 for a size that it does not say.
std::optional<MemoryShortage> read_shortage(const std::string& message);

// A line of /proc/meminfo in bytes ("MemAvailable:"); 0 when the line is not there.
uint64_t host_figure(const std::string& name);

// An error of PyTorch's CPU allocator: what it tried to allocate; 0 for another text.
uint64_t wanted_bytes(const std::string& message);

}  // namespace torch_remote::server
