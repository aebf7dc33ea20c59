#include "client/process/process.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include "base/platform.h"
#include "client/capture/advice.h"
#include "client/process/errors.h"

namespace torch_remote::client {
namespace {

std::atomic<bool> forked_child{false};
std::atomic<bool> exiting{false};

Advice fork_advice;

}  // namespace

bool in_forked_child() {
  return forked_child.load(std::memory_order_relaxed);
}

void refuse_in_forked_child() {
  const std::string name = c10::DeviceTypeName(c10::kPrivateUse1, true);
  TORCH_CHECK(false, "Cannot re-initialize ", name, " in forked subprocess. To use ", name,
              " with multiprocessing, you must use the 'spawn' start method", fork_advice.get());
}

void set_fork_advice(std::string advice) {
  fork_advice.set(std::move(advice));
}

void watch_forks(void (*abandon)()) {
  static std::atomic<void (*)()> to_abandon{nullptr};
  to_abandon = abandon;
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    forked_child.store(true, std::memory_order_relaxed);
    to_abandon.load()();
  });
  (void)registered;
}

bool is_blocking() {
  static const bool blocking = [] {
    const char* text = std::getenv("TORCH_REMOTE_BLOCKING");
    return text != nullptr && *text != '\0' && std::string_view(text) != "0";
  }();
  return blocking;
}

void park_if_exiting() {
  if (!is_exiting() || is_main_thread())
    return;
  WithoutGil without_gil;
  while (true)
    pause();
}

void mark_exiting() {
  exiting.store(true, std::memory_order_relaxed);
}

bool is_exiting() {
  return exiting.load(std::memory_order_relaxed);
}

}  // namespace torch_remote::client
