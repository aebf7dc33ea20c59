#include "client/process/threads.h"

#include <memory>
#include <unordered_set>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/graph_task.h>

#include "base/mutex.h"

namespace torch_remote::client {
namespace {

using Settings = std::optional<marshal::ThreadSettings>;

class Caller : public c10::DebugInfoBase {
 public:
  Caller(uint64_t thread, Settings settings) : thread(thread), settings(settings) {}

  const uint64_t thread;
  const Settings settings;
};

// One of PyTorch's own kinds, which only its tests use.
const auto kCaller = c10::DebugInfoKind::TEST_INFO_2;

// The numbers of the threads that have not ended.
struct LiveThreads {
  Mutex mutex;
  uint64_t last GUARDED_BY(mutex) = 0;
  std::unordered_set<uint64_t> numbers GUARDED_BY(mutex);
};

LiveThreads& live_threads() {
  static auto* const threads = new LiveThreads;  // leaks: threads end at exit
  return *threads;
}

struct ThreadNumber {
  ThreadNumber() {
    MutexLock lock(live_threads().mutex);
    number = ++live_threads().last;
    live_threads().numbers.insert(number);
  }

  ~ThreadNumber() {
    MutexLock lock(live_threads().mutex);
    live_threads().numbers.erase(number);
  }

  uint64_t number = 0;
};

uint64_t new_number() {
  thread_local const ThreadNumber made;
  return made.number;
}

uint64_t own_number() {
  thread_local uint64_t number = 0;
  if (number == 0) [[unlikely]]
    number = new_number();
  return number;
}

// Who called the backward that a thread works for.
struct Backward {
  int task = -1;
  uint64_t thread = 0;
  Settings settings;
};

Backward read_backward(int task) {
  const auto* const caller = dynamic_cast<const Caller*>(c10::ThreadLocalDebugInfo::get(kCaller));
  if (caller == nullptr)
    return {task, own_number(), std::nullopt};
  return {task, caller->thread, caller->settings};
}

// Null outside a backward.
const Backward* current_backward() {
  thread_local constinit Backward known;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == -1) [[likely]]
    return nullptr;
  if (task != known.task)
    known = read_backward(task);
  return &known;
}

thread_local std::vector<std::unique_ptr<c10::DebugInfoGuard>> backwards;

}  // namespace

uint64_t current_thread() {
  const Backward* const backward = current_backward();
  return backward == nullptr ? own_number() : backward->thread;
}

std::optional<marshal::ThreadSettings> current_settings() {
  const Backward* const backward = current_backward();
  return backward == nullptr ? marshal::read_thread_settings() : backward->settings;
}

bool has_ended(uint64_t thread) {
  MutexLock lock(live_threads().mutex);
  return !live_threads().numbers.contains(thread);
}

void enter_backward() {
  backwards.push_back(std::make_unique<c10::DebugInfoGuard>(
      kCaller, std::make_shared<Caller>(current_thread(), current_settings())));
}

void leave_backward() {
  if (!backwards.empty())
    backwards.pop_back();
}

}  // namespace torch_remote::client
