#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "client/process/lines.h"

namespace torch_remote::client {

// How often, and how long, a line of the user's program waited for a server.
struct WaitsOfLine {
  std::string line;  // "train.py:12"; empty: unknown
  uint64_t count = 0;
  std::chrono::nanoseconds time{0};
};

// Counts its lifetime as a wait of the line that this thread is at.
class LineWait {
 public:
  LineWait() = default;
  ~LineWait();

  LineWait(const LineWait&) = delete;
  LineWait& operator=(const LineWait&) = delete;

 private:
  const LineId line_ = current_line();
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// During its lifetime, waits of this thread are not counted: they are not the program's.
class UncountedWaits {
 public:
  UncountedWaits();
  ~UncountedWaits();

  UncountedWaits(const UncountedWaits&) = delete;
  UncountedWaits& operator=(const UncountedWaits&) = delete;

 private:
  const bool before_;
};

// Of this process since its start, the longest time first. Thread-safe.
std::vector<WaitsOfLine> waits_by_line();

}  // namespace torch_remote::client
