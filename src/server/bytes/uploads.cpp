#include "server/bytes/uploads.h"

#include <c10/util/Exception.h>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {

Staging::Staging(uint64_t length, UploadMemory* source,
                 std::shared_ptr<std::atomic<uint64_t>> total)
    : length_(length), is_lost_(source == nullptr), total_(std::move(total)) {
  if (is_lost_)
    return;
  try {
    memory_ = source->allocate(length);
  } catch (const std::exception&) {  // only this upload fails, not the session
    is_lost_ = true;
    return;
  }
  total_->fetch_add(length_);
}

Staging::~Staging() {
  if (!is_lost_)
    total_->fetch_sub(length_);
}

void Uploads::expect_from(std::span<const std::byte> payload) {
  if (const auto begin = wire::find_bulk_begin(payload))
    expect(*begin);
}

void Uploads::expect(const wire::Begin& begin) {
  const uint64_t staged = total_->load() + begin.length;
  wire::check_limit("bytes of uploads on their way", staged, kMaxStagedBytes);
  auto staging =
      std::make_shared<Staging>(begin.length, staged > limits_.bytes ? nullptr : &memory_, total_);
  staging->is_saved_ = begin.is_kept && begin.length >= wire::kMinCachedUpload &&
                       cache_ != nullptr && !staging->is_lost();
  MutexLock lock(mutex_);
  wire::check_limit("uploads on their way", lanes_.size() + 1, limits_.lanes);
  const bool is_new = lanes_.emplace(begin.upload, Lane{std::move(staging)}).second;
  if (!is_new)
    throw ProtocolError("an upload begins twice");
}

std::span<std::byte> Uploads::target(uint64_t lane, uint64_t offset, uint64_t length) {
  MutexLock lock(mutex_);
  const auto found = lanes_.find(lane);
  if (found == lanes_.end())
    throw ProtocolError("bytes of an upload that has not begun");
  Staging& staging = *found->second.staging;
  if (staging.is_complete_ || offset != staging.received_ ||
      length > staging.length_ - staging.received_)
    throw ProtocolError("bytes of an upload have a wrong offset or length");
  if (staging.is_lost()) {
    ignored_bytes_.resize(length);
    return ignored_bytes_;
  }
  return {staging.data() + offset, static_cast<size_t>(length)};
}

// Before the executor is told of the bytes: later it may change them.
void Uploads::save(uint64_t lane, uint64_t length) {
  std::shared_ptr<Staging> staging;
  uint64_t offset = 0;
  {
    MutexLock lock(mutex_);
    const auto found = lanes_.find(lane);
    if (found == lanes_.end() || !found->second.staging->is_saved_)
      return;
    staging = found->second.staging;
    offset = staging->received_;
  }
  cache_->save(lane, offset, staging->length_, {staging->data() + offset, length});
}

bool Uploads::received(uint64_t lane, uint64_t length, bool last) {
  if (cache_ != nullptr)
    save(lane, length);
  std::shared_ptr<Staging> done;  // frees its memory after the lock is released
  {
    MutexLock lock(mutex_);
    const auto found = lanes_.find(lane);
    if (found == lanes_.end())
      throw ProtocolError("bytes of an upload that has not begun");
    Staging& staging = *found->second.staging;
    staging.received_ += length;
    if (!last && !staging.is_copied_in_parts_)
      return false;
    if (!last) {
      changed_.notify_all();
      return true;
    }
    if (staging.received_ != staging.length_)
      throw ProtocolError("an upload has fewer bytes than it announced");
    staging.is_complete_ = true;
    if (found->second.is_taken) {
      done = std::move(found->second.staging);
      lanes_.erase(found);
    }
  }
  changed_.notify_all();
  return true;
}

std::shared_ptr<Staging> Uploads::take(uint64_t upload, uint64_t length) {
  MutexLock lock(mutex_);
  const auto found = lanes_.find(upload);
  if (found == lanes_.end() || found->second.is_taken || found->second.staging->length_ != length) {
    throw ProtocolError(
        "an upload that is not inline must begin once, as the first message of its frame");
  }
  std::shared_ptr<Staging> staging = found->second.staging;
  found->second.is_taken = true;
  if (staging->is_complete_)
    lanes_.erase(found);
  TORCH_CHECK_WITH(OutOfMemoryError, !staging->is_lost(), "CPU out of memory. The server has no ",
                   length, " bytes of host memory for an upload");
  return staging;
}

void Uploads::copy_in_parts(Staging& staging) {
  MutexLock lock(mutex_);
  staging.is_copied_in_parts_ = true;
}

uint64_t Uploads::wait_for_more(const Staging& staging, uint64_t known) {
  MutexLock lock(mutex_);
  while (!staging.is_complete_ && !(staging.is_copied_in_parts_ && staging.received_ > known)) {
    if (is_over_)
      throw ConnectionError("the connection ended in the middle of an upload");
    changed_.wait(mutex_);
  }
  return staging.received_;
}

uint64_t Uploads::arrived_bytes(const Staging& staging) {
  MutexLock lock(mutex_);
  return staging.received_;
}

bool Uploads::has_arrived(const Staging& staging) {
  MutexLock lock(mutex_);
  return staging.is_complete_;
}

std::shared_ptr<Staging> Uploads::load(const wire::Digest& digest, uint64_t length) {
  if (cache_ == nullptr)
    return nullptr;
  const Fd file = cache_->find(digest, length);
  if (!file || total_->load() + length > std::min(limits_.bytes, kMaxStagedBytes))
    return nullptr;
  auto staging = std::make_shared<Staging>(length, &memory_, total_);
  if (staging->is_lost() || !cache_->read(file, digest, {staging->data(), length}))
    return nullptr;
  MutexLock lock(mutex_);
  staging->received_ = length;
  staging->is_complete_ = true;
  return staging;
}

std::vector<wire::CachedEntry> Uploads::cached() {
  return cache_ == nullptr ? std::vector<wire::CachedEntry>() : cache_->list();
}

void Uploads::end() {
  {
    MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
}

}  // namespace torch_remote::server
