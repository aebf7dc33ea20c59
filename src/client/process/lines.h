#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_remote::client {

// Note [The user's line]
//
// A call fails after the program has gone on, so the client keeps the line that made it: the
// topmost frame of the calling thread outside torch. Lines are never sent: an error has the call's
// number, and CallLines has the line of each number. Autograd's threads have no such frame; their
// calls get the line that made the node being evaluated, found by the node's sequence number. A
// node without a call of its own (a view) gets the line of the call after it.

// One line of the user's program; 0: unknown. With kInBackward: its backward made the call.
using LineId = uint32_t;
constexpr LineId kInBackward = LineId{1} << 31;

struct SourceLine {
  std::string file;
  int number = 0;
  std::string function;
};

// Equal lines have equal ids. Thread-safe.
LineId intern_line(const SourceLine& line);

// ", called at train.py:12 in forward"; empty if the line is unknown.
std::string describe_line(LineId line);

// "train.py:12", "the backward of train.py:12"; empty if the line is unknown.
std::string name_line(LineId line);

// Of a line that is not 0.
SourceLine line_of(LineId line);

// The line that this thread is at. On the path of every call: no lock, no GIL.
LineId current_line();

// The lines of all frames of this thread, libraries' too, the innermost first. A thread of autograd
// without frames has the line that made the node. Needs no GIL.
std::vector<LineId> current_stack();

constexpr uint16_t kResizeSite = UINT16_MAX;
constexpr uint16_t kRunSite = UINT16_MAX - 1;

// Where a call was made, and for which of the server's devices. `operation` is 0 for an upload,
// kResizeSite, kRunSite (a program), or OperatorInfo::site_number. `thread` is current_thread().
struct CallSite {
  LineId line = 0;
  uint8_t device = 0;
  uint16_t operation = 0;
  uint32_t thread = 0;
};

// The sites of a session's last calls, by number (Note [Numbers of calls] in wire/messages.h). One
// thread at a time puts, any thread finds.
class CallLines {
 public:
  static constexpr uint64_t kPage = 2048;

  struct Page {
    // round:16 operation:16 device:8 is_in_backward:1 line:23
    std::array<std::atomic<uint64_t>, kPage> sites;
    std::array<std::atomic<uint32_t>, kPage> threads;
  };

  ~CallLines();

  void put(uint64_t call, CallSite site) {
    const uint64_t place = call % kKept;
    Page* page = pages_[place / kPage].load(std::memory_order_relaxed);
    if (page == nullptr)
      page = add_page(place / kPage);
    page->threads[place % kPage].store(site.thread, std::memory_order_relaxed);
    page->sites[place % kPage].store(pack(call, site), std::memory_order_relaxed);
  }

  // Nothing if the call is too long ago.
  std::optional<CallSite> find(uint64_t call) const;
  // How many calls and uploads after `first` up to `last` this thread has made.
  uint64_t count(uint64_t first, uint64_t last, uint32_t thread) const;

  // Forgets everything. The pages may be destroyed once no thread is in put() or find().
  std::vector<std::unique_ptr<Page>> take_pages();

 private:
  static constexpr uint64_t kKept = 1 << 17;  // twice as many as can be under way
  static constexpr int kLineBits = 23;

  // How often the numbers have gone round the ring, plus one; 0 marks an empty place.
  static uint64_t round_of(uint64_t call) { return call / kKept % 65535 + 1; }

  static uint64_t pack(uint64_t call, CallSite site) {
    const uint64_t line =
        (site.line & kInBackward) >> (31 - kLineBits) | (site.line & ~kInBackward);
    return round_of(call) << 48 | uint64_t{site.operation} << 32 | uint64_t{site.device} << 24 |
           line;
  }

  Page* add_page(uint64_t number);

  std::array<std::atomic<Page*>, kKept / kPage> pages_{};  // each made at its first use
};

// From now on lines of this file are of this cell of a notebook, the 3 of "In [3]", which is about
// to run. Its lines are described as "cell 3, line 1". Thread-safe.
void note_cell(const std::string& file, int cell);

}  // namespace torch_remote::client
