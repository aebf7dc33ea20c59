#include "server/executor/failures.h"

#include "base/utf8.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr size_t kMostText = 2048;

}  // namespace

void StoppedThreads::set_current(uint64_t thread) {
  current_ = thread;
  const auto found = stopped_.find(thread);
  cause_ = found == stopped_.end() ? nullptr : found->second;
}

void StoppedThreads::go_on(uint64_t thread) {
  stopped_.erase(thread);
  if (thread == current_)
    cause_ = nullptr;
}

Cause StoppedThreads::stop(wire::Error failure, uint64_t since) {
  wire::check_limit("stopped threads of a session", stopped_.size() + 1, wire::kMaxStoppedThreads);
  // Kept as long as something is missing because of it.
  failure.message.resize(cut_text(failure.message, kMostText).size());
  failure.thread = current_;
  failure.since = since;
  cause_ = std::make_shared<const wire::Error>(std::move(failure));
  stopped_[current_] = cause_;
  replies_.error(0, *cause_);
  return cause_;
}

}  // namespace torch_remote::server
