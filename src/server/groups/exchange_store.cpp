#include "server/groups/exchange_store.h"

#include <cstring>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {

ExchangeStore::ExchangeStore(std::chrono::milliseconds timeout, Tell tell)
    : c10d::Store(timeout), tell_(std::move(tell)) {}

bool ExchangeStore::bring(std::vector<wire::GroupEntry> entries) {
  {
    MutexLock lock(mutex_);
    if (is_asked_ || is_over_)
      return false;
    for (const wire::GroupEntry& entry : entries) {
      if (missing_.erase(entry.key) == 0)
        throw ProtocolError("a process group gets a value for a key that it does not wait for");
      brought_bytes_ += entry.key.size() + entry.value.size();
      wire::check_limit("bytes of a process group's store", brought_bytes_, kMaxStoreBytes);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(entry.value.data());
      values_[entry.key].assign(bytes, bytes + entry.value.size());
    }
    is_asked_ = true;
  }
  changed_.notify_all();
  return true;
}

std::vector<wire::GroupEntry> ExchangeStore::finish() {
  MutexLock lock(mutex_);
  is_over_ = true;
  return std::move(untold_);
}

void ExchangeStore::abandon() {
  {
    MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
}

c10::intrusive_ptr<c10d::Store> ExchangeStore::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void ExchangeStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
  MutexLock lock(mutex_);
  values_[key] = value;
  if (!is_over_)
    untold_.push_back({key, {bytes, bytes + value.size()}});
}

std::vector<std::string> ExchangeStore::missing_of(const std::vector<std::string>& keys) const {
  std::vector<std::string> missing;
  for (const std::string& key : keys)
    if (!values_.contains(key))
      missing.push_back(key);
  return missing;
}

bool ExchangeStore::take_answer(const std::vector<std::string>& keys, wire::GroupAnswer& answer) {
  MutexLock lock(mutex_);
  answer.missing = missing_of(keys);
  if (!is_asked_ || is_over_ || answer.missing.empty())
    return false;
  is_asked_ = false;
  answer.entries = std::move(untold_);
  untold_.clear();
  missing_ = {answer.missing.begin(), answer.missing.end()};
  return true;
}

void ExchangeStore::wait_for_change(Clock::time_point end, const std::string& key) {
  MutexLock lock(mutex_);
  TORCH_CHECK(!is_over_, "the client brings no value for the key ", key);
  if (!is_asked_)
    changed_.wait_until(mutex_, end);
  TORCH_CHECK(Clock::now() < end, "the other ranks of a process group did not answer in time (",
              key, ")");
}

void ExchangeStore::wait(const std::vector<std::string>& keys,
                         const std::chrono::milliseconds& timeout) {
  const Clock::time_point end =
      Clock::now() + (timeout.count() > 0 ? std::min(timeout, timeout_) : timeout_);
  while (true) {
    std::vector<std::string> missing;
    {
      MutexLock lock(mutex_);
      missing = missing_of(keys);
    }
    if (missing.empty())
      return;
    wire::GroupAnswer answer;
    if (take_answer(missing, answer))
      tell_(answer);
    wait_for_change(end, missing.front());
  }
}

void ExchangeStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

std::vector<uint8_t> ExchangeStore::get(const std::string& key) {
  wait({key}, timeout_);
  MutexLock lock(mutex_);
  return values_.at(key);
}

int64_t ExchangeStore::add(const std::string& key, int64_t /*value*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the store of a process group does not count (", key, ")");
}

bool ExchangeStore::deleteKey(const std::string& key) {
  MutexLock lock(mutex_);
  return values_.erase(key) != 0;
}

bool ExchangeStore::check(const std::vector<std::string>& keys) {
  MutexLock lock(mutex_);
  return missing_of(keys).empty();
}

int64_t ExchangeStore::getNumKeys() {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(values_.size());
}

}  // namespace torch_remote::server
