#include "client/session/threads.h"

#include <atomic>
#include <memory>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/graph_task.h>

namespace torch_remote::client {
namespace {

class Caller : public c10::DebugInfoBase {
 public:
  explicit Caller(uint64_t thread) : thread(thread) {}

  const uint64_t thread;
};

// Kinds of its own came with torch 2.12; nothing else uses this one but PyTorch's tests.
const auto kCaller = c10::DebugInfoKind::TEST_INFO_2;

uint64_t own_number() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

uint64_t number_of_caller() {
  const auto* const info = dynamic_cast<const Caller*>(c10::ThreadLocalDebugInfo::get(kCaller));
  return info != nullptr ? info->thread : own_number();
}

thread_local std::vector<std::unique_ptr<c10::DebugInfoGuard>> backwards;

}  // namespace

uint64_t current_thread() {
  thread_local int known_task = -1;
  thread_local uint64_t known_caller = 0;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == -1) [[likely]]
    return own_number();
  if (task != known_task) {
    known_task = task;
    known_caller = number_of_caller();
  }
  return known_caller;
}

void enter_backward() {
  backwards.push_back(
      std::make_unique<c10::DebugInfoGuard>(kCaller, std::make_shared<Caller>(current_thread())));
}

void leave_backward() {
  if (!backwards.empty())
    backwards.pop_back();
}

}  // namespace torch_remote::client
