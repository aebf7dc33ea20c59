#include "server/executor/failures.h"

#include "base/text.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr size_t kMostText = 2048;

uint64_t memory_of(const wire::Error& failure) {
  constexpr uint64_t kOverhead = 64;  // of shared ownership, and of the allocator
  return sizeof(failure) + kOverhead + failure.operator_name.capacity() +
         failure.message.capacity() + failure.results.capacity() * sizeof(failure.results[0]);
}

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
  failure.message = std::string(cut_text(failure.message, kMostText));
  failure.thread = current_;
  failure.since = since;
  cause_ = keep(std::move(failure));
  stopped_[current_] = cause_;
  replies_.error(0, *cause_);
  return cause_;
}

Cause StoppedThreads::keep(wire::Error failure) {
  const uint64_t bytes = memory_of(failure);
  wire::check_limit("bytes of failed calls", kept_->load() + bytes, kMaxFailureBytes);
  const Cause kept(new wire::Error(std::move(failure)),
                   [bytes, kept = kept_, counted = counted_](const wire::Error* error) {
                     delete error;
                     *kept -= bytes;
                     *counted -= bytes;
                   });
  *kept_ += bytes;
  *counted_ += bytes;
  return kept;
}

}  // namespace torch_remote::server
