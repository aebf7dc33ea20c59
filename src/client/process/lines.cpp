#include "client/process/lines.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include "base/mutex.h"
#include "client/process/errors.h"
#include "client/process/process.h"

namespace torch_remote::client {
namespace {

struct KnownLine {
  SourceLine source;
  int cell;  // of a notebook; 0: the file is no cell
};

// All lines seen so far. Leaks: used at exit.
class Lines {
 public:
  static Lines& instance() {
    static Lines* const lines = new Lines;
    return *lines;
  }

  void note_cell(const std::string& file, int cell) {
    MutexLock lock(mutex_);
    cells_[file] = cell;
  }

  LineId intern(const SourceLine& line) {
    MutexLock lock(mutex_);
    const int cell = cell_of(line.file);
    const std::tuple key(line.file, line.number, line.function, cell);
    if (const auto known = ids_.find(key); known != ids_.end())
      return known->second;
    if (all_.size() >= kMost)
      return 0;
    all_.push_back({line, cell});
    return ids_[key] = static_cast<LineId>(all_.size());
  }

  KnownLine get(LineId id) {
    MutexLock lock(mutex_);
    return all_.at(id - 1);
  }

 private:
  // A limit, for programs that generate code.
  static constexpr size_t kMost = size_t{1} << 18;  // CallLines has 23 bits for a line

  // ipykernel's files are noted; IPython at a terminal has the number in the name.
  int cell_of(const std::string& file) const REQUIRES(mutex_) {
    if (const auto noted = cells_.find(file); noted != cells_.end())
      return noted->second;
    constexpr std::string_view kCell = "<ipython-input-";
    int cell = 0;
    if (file.starts_with(kCell))
      std::from_chars(file.data() + kCell.size(), file.data() + file.size(), cell);
    return cell;
  }

  Mutex mutex_;
  std::deque<KnownLine> all_ GUARDED_BY(mutex_);
  std::map<std::tuple<std::string, int, std::string, int>, LineId> ids_ GUARDED_BY(mutex_);
  std::unordered_map<std::string, int> cells_ GUARDED_BY(mutex_);
};

std::string place_of(const KnownLine& line) {
  const std::string number = std::to_string(line.source.number);
  if (line.cell != 0)
    return "cell " + std::to_string(line.cell) + ", line " + number;
  return line.source.file + ":" + number;
}

// The lines of the last nodes of every thread's graphs. Each thread numbers its nodes.
class NodeLines {
 public:
  static NodeLines& instance() {
    static NodeLines* const lines = new NodeLines;
    return *lines;
  }

  void put(uint64_t thread, uint64_t node, LineId line) {
    const uint64_t key = key_of(thread, node);
    places_[key % kKept].store((key / kKept) << 32 | line, std::memory_order_relaxed);
  }

  LineId find(uint64_t thread, uint64_t node) const {
    const uint64_t key = key_of(thread, node);
    const uint64_t found = places_[key % kKept].load(std::memory_order_relaxed);
    return (found >> 32) == ((key / kKept) & UINT32_MAX) ? static_cast<LineId>(found) : 0;
  }

 private:
  static constexpr uint64_t kKept = 1 << 17;

  // Neighbours in a thread are neighbours here; different threads are far apart.
  static uint64_t key_of(uint64_t thread, uint64_t node) {
    return thread * 0x9E3779B97F4A7C15 + node;
  }

  std::array<std::atomic<uint64_t>, kKept> places_{};
};

// Gives this line to the nodes that this thread has made since the last call of this.
void note_nodes(LineId line) {
  thread_local uint64_t noted = 0;
  const uint64_t next = at::sequence_number::peek();
  if (next == noted)
    return;
  constexpr uint64_t kMost = 64;  // more nodes without a call are of another device
  const uint64_t thread = at::RecordFunction::currentThreadId();
  for (uint64_t node = next - std::min(next - noted, kMost); node < next; ++node)
    NodeLines::instance().put(thread, node, line);
  noted = next;
}

// The line of the node that autograd runs. Between two nodes, and in a node that accumulates a
// gradient, it is the line of the node that ran before.
LineId line_in_backward() {
  thread_local LineId last = 0;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr ||
      node->sequence_nr() == UINT64_MAX)  // none, or a node that accumulates a leaf's gradient
    return last;
  const LineId line = NodeLines::instance().find(node->thread_id(), node->sequence_nr());
  return last = line == 0 ? 0 : line | kInBackward;
}

}  // namespace

void note_cell(const std::string& file, int cell) {
  Lines::instance().note_cell(file, cell);
}

LineId intern_line(const SourceLine& line) {
  return Lines::instance().intern(line);
}

std::string describe_line(LineId id) {
  if (id == 0)
    return {};
  const KnownLine line = Lines::instance().get(id & ~kInBackward);
  return std::string((id & kInBackward) != 0 ? ", in the backward of the call at "
                                             : ", called at ") +
         place_of(line) + " in " + line.source.function;
}

std::string name_line(LineId id) {
  if (id == 0)
    return {};
  const KnownLine line = Lines::instance().get(id & ~kInBackward);
  return ((id & kInBackward) != 0 ? "the backward of " : "") + place_of(line);
}

SourceLine line_of(LineId id) {
  return Lines::instance().get(id & ~kInBackward).source;
}

LineId current_line() {
  // At exit Python deletes the frames of other threads.
  if (python_hooks.find_line == nullptr || is_exiting())
    return 0;
  LineId line = python_hooks.find_line();
  if (line == 0)
    line = line_in_backward();
  note_nodes(line);
  return line;
}

std::vector<LineId> current_stack() {
  std::vector<LineId> stack;
  if (python_hooks.find_stack == nullptr || is_exiting())
    return stack;
  python_hooks.find_stack(stack);
  if (stack.empty()) {
    if (const LineId line = line_in_backward())
      stack.push_back(line);
  }
  return stack;
}

std::optional<CallSite> CallLines::find(uint64_t call) const {
  const uint64_t place = call % kKept;
  const Page* const page = pages_[place / kPage].load(std::memory_order_acquire);
  if (page == nullptr)
    return std::nullopt;
  const uint64_t found = page->sites[place % kPage].load(std::memory_order_relaxed);
  if (found >> 48 != round_of(call))
    return std::nullopt;
  constexpr uint64_t kBackwardBit = uint64_t{1} << kLineBits;
  const auto line = static_cast<LineId>(found & (kBackwardBit - 1));
  return CallSite{(found & kBackwardBit) != 0 ? line | kInBackward : line,
                  static_cast<uint8_t>(found >> 24), static_cast<uint16_t>(found >> 32),
                  page->threads[place % kPage].load(std::memory_order_relaxed)};
}

uint64_t CallLines::count(uint64_t first, uint64_t last, uint32_t thread) const {
  uint64_t count = 0;
  for (uint64_t call = std::max(first + 1, last < kKept ? 1 : last - kKept + 1); call <= last;
       ++call) {
    const auto site = find(call);
    count += site.has_value() && site->thread == thread && site->operation != kResizeSite ? 1 : 0;
  }
  return count;
}

CallLines::Page* CallLines::add_page(uint64_t number) {
  auto* const page = new Page{};
  pages_[number].store(page, std::memory_order_release);
  return page;
}

std::vector<std::unique_ptr<CallLines::Page>> CallLines::take_pages() {
  std::vector<std::unique_ptr<Page>> taken;
  for (std::atomic<Page*>& page : pages_)
    taken.emplace_back(page.exchange(nullptr));
  return taken;
}

CallLines::~CallLines() {
  take_pages();
}

}  // namespace torch_remote::client
