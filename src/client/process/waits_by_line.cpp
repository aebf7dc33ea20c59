#include "client/process/waits_by_line.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"

namespace torch_remote::client {
namespace {

struct WaitTable {
  Mutex mutex;
  std::unordered_map<LineId, WaitsOfLine> by_line GUARDED_BY(mutex);
};

// Never destroyed: threads may wait while the process ends.
WaitTable& wait_table() {
  static WaitTable& table = *new WaitTable;
  return table;
}

thread_local bool is_uncounted = false;

}  // namespace

UncountedWaits::UncountedWaits() : before_(std::exchange(is_uncounted, true)) {}

UncountedWaits::~UncountedWaits() {
  is_uncounted = before_;
}

LineWait::~LineWait() {
  if (is_uncounted)
    return;
  const auto time = std::chrono::steady_clock::now() - begin_;
  WaitTable& table = wait_table();
  MutexLock lock(table.mutex);
  WaitsOfLine& waits = table.by_line[line_];
  ++waits.count;
  waits.time += time;
}

std::vector<WaitsOfLine> waits_by_line() {
  std::vector<std::pair<LineId, WaitsOfLine>> found;
  {
    WaitTable& table = wait_table();
    MutexLock lock(table.mutex);
    found.assign(table.by_line.begin(), table.by_line.end());
  }
  std::vector<WaitsOfLine> all;
  for (auto& [line, waits] : found) {
    waits.line = name_line(line);
    all.push_back(std::move(waits));
  }
  std::ranges::sort(all, std::greater(), &WaitsOfLine::time);
  return all;
}

}  // namespace torch_remote::client
