#include "client/session/warnings.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "client/operators/alerts.h"
#include "client/process/threads.h"

namespace torch_remote::client {
namespace {

// Beyond these, what comes before the next wait is left out. A loop repeats one line's warnings.
constexpr size_t kMostWaiting = 1024;
constexpr int64_t kMostOfOneLine = 128;

}  // namespace

void Warnings::note_text(wire::Warning warning) {
  if (warning.number != texts_.size() + 1)
    throw ProtocolError("the server sends a text of a warning out of order");
  if (is_alert(warning.text)) {
    texts_.push_back(nullptr);
    return;
  }
  const bool is_deprecation = warning.category == wire::WarningCategory::kDeprecation;
  texts_.push_back(
      std::make_shared<const ShownWarning>(ShownWarning{is_deprecation, std::move(warning.text)}));
}

void Warnings::add(wire::Warning warning, CallSite site) {
  const uint64_t number = warning.number;
  if (warning.is_new)
    note_text(std::move(warning));
  if (number > texts_.size())
    throw ProtocolError("the server warns with a text that it has not sent");
  const auto& shown = texts_[number - 1];
  if (shown == nullptr)
    return;
  MutexLock lock(mutex_);
  const auto is_same = [&](const Warning& other) {
    return other.shown == shown && other.line == site.line;
  };
  if (waiting_.size() == kMostWaiting)
    ++left_out_;
  else if (std::ranges::count_if(waiting_, is_same) < kMostOfOneLine)
    waiting_.push_back({shown, site.line, site.thread});
  else
    ++left_out_;
  has_any_.store(true, std::memory_order_relaxed);
}

std::optional<Warnings::Warning> Warnings::take(uint64_t thread) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(waiting_, [thread](const Warning& warning) {
    return thread == 0 || warning.thread == 0 || warning.thread == thread ||
           has_ended(warning.thread);
  });
  std::optional<Warning> taken;
  if (found != waiting_.end()) {
    taken = std::move(*found);
    waiting_.erase(found);
  } else if (left_out_ != 0 && waiting_.empty()) {
    const std::string count = std::to_string(std::exchange(left_out_, 0));
    taken = Warning{std::make_shared<const ShownWarning>(
        ShownWarning{false, "torch_remote: " + count + " more warnings of kernels were left out"})};
  }
  has_any_.store(!waiting_.empty() || left_out_ != 0, std::memory_order_relaxed);
  return taken;
}

}  // namespace torch_remote::client
