#include "server/failures.h"

#include <algorithm>

#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// Each may have 32 KiB of text.
constexpr size_t kMostListed = 256;

}  // namespace

Poison Taint::cause() const {
  Poison first = poison_;
  for (const Mark& mark : skipped_)
    first = earlier(first, mark.cause);
  return first;
}

void Taint::poison_with(const Poison& cause) {
  if (poison_ == nullptr)
    poison_ = cause;
}

void Taint::mark_skipped(const Poison& cause, uint64_t call) {
  if (poison_ == cause || std::ranges::find(skipped_, cause, &Mark::cause) != skipped_.end())
    return;
  skipped_.push_back({cause, call});
}

void Taint::forgive(const Poison& cause) {
  if (poison_ == cause)
    poison_.reset();
}

void Taint::overwrite() {
  poison_.reset();
  skipped_.clear();
}

bool Taint::heal(uint64_t cause) {
  return std::erase_if(skipped_, [&](const Mark& mark) { return mark.cause->call == cause; }) != 0;
}

uint64_t Taint::answer(uint64_t cause) const {
  if (poison_ != nullptr && poison_->call == cause)
    return wire::kPoisoned;
  for (const Mark& mark : skipped_)
    if (mark.cause->call == cause)
      return wire::kSkipped + mark.call;
  return wire::kUntouched;
}

void Failures::add(const Poison& cause) {
  list(cause);
  if (cause->is_listed)
    replies_.error(0, *cause);
  else
    ++beyond_;
}

void Failures::list(const Poison& cause) {
  if (cause->is_listed || listed_.size() >= kMostListed)
    return;
  cause->is_listed = true;
  listed_.push_back(cause);
}

void Failures::told(uint64_t cause) {
  std::erase_if(listed_, [cause](const Poison& failure) {
    const bool is_it = failure->call == cause;
    failure->is_listed = failure->is_listed && !is_it;
    return is_it;
  });
  if (listed_.empty())
    beyond_ = 0;
}

wire::Failures Failures::untold() const {
  wire::Failures failures;
  failures.total = listed_.size() + beyond_;
  for (const Poison& failure : listed_) {
    if (failures.errors.size() == wire::kMaxFailures)
      break;
    failures.errors.push_back(*failure);
  }
  return failures;
}

}  // namespace torch_remote::server
