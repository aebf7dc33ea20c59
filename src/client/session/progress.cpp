#include "client/session/progress.h"

#include <chrono>
#include <utility>

#include "client/process/errors.h"

namespace torch_remote::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLeastShown = 64 << 20;
constexpr auto kBetweenUpdates = std::chrono::milliseconds(50);

thread_local bool shown = false;
thread_local Clock::time_point last_update;

}  // namespace

TransferProgress::TransferProgress(const Request& request)
    : TransferProgress(request.done ? 0 : request.destination.size() + request.upload_bytes,
                       request.upload_bytes != 0) {}

TransferProgress::TransferProgress(uint64_t bytes, bool is_upload) {
  // With KeepGil PyTorch holds a lock, and showing runs Python.
  if (bytes < kLeastShown || shown || KeepGil::is_kept() || python_hooks.begin_progress == nullptr)
    return;
  is_mine_ = shown = python_hooks.begin_progress(bytes, is_upload);
}

TransferProgress::~TransferProgress() {
  if (!is_mine_)
    return;
  shown = false;
  python_hooks.end_progress();
}

bool TransferProgress::is_shown() {
  return shown;
}

bool TransferProgress::set_shown(bool is_shown) {
  return std::exchange(shown, is_shown);
}

void TransferProgress::update() {
  if (!shown || KeepGil::is_kept()) [[likely]]
    return;
  const Clock::time_point now = Clock::now();
  if (now - last_update < kBetweenUpdates)
    return;
  last_update = now;
  python_hooks.update_progress();
}

}  // namespace torch_remote::client
