#include "server/cache/upload_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/platform.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

using Clock = std::chrono::steady_clock;

// How long the executor waits for an answer: the helper may be writing to a slow disk.
constexpr std::chrono::seconds kAnswerPatience{10};
// Hashed while they are in the processor's cache.
constexpr size_t kReadBytes = size_t{1} << 20;

bool read_part(const Fd& file, uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = ::pread(file.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;  // it was cut, or cannot be read
    offset += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
  return true;
}

// False: the socket is not ready before the deadline.
bool wait_until(Clock::time_point deadline, const Fd& socket, short events) {
  pollfd polled{socket.get(), events, 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0)
      return false;
    const int ready = ::poll(&polled, 1, static_cast<int>(left.count()));
    if (ready >= 0 || errno != EINTR)
      return ready > 0;
  }
}

bool send_all(const Fd& to, std::span<const std::byte> bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(to.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || (errno == EAGAIN && wait_until(deadline, to, POLLOUT))))
      continue;
    if (sent <= 0)
      return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace

UploadCache::UploadCache(CacheSockets helper, const wire::Digest& owner,
                         std::chrono::milliseconds patience)
    : patience_(patience), requests_(std::move(helper.requests)), saves_(std::move(helper.saves)) {
  tell(CacheAction::kOwner, owner);
}

bool UploadCache::tell(CacheAction action, const wire::Digest& digest) const {
  const CacheRequest request{action, digest};
  constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
  return requests_ && ::send(requests_.get(), &request, sizeof request, kFlags) >= 0;
}

UploadCache::Answer UploadCache::ask(CacheAction action, const wire::Digest& digest) {
  if (!tell(action, digest))
    return {};
  CacheAnswer answer;
  std::vector<Fd> passed;
  if (wait_until(Clock::now() + kAnswerPatience, requests_, POLLIN))
    passed = take_descriptors(requests_, std::as_writable_bytes(std::span(&answer, 1)));
  if (passed.size() == 1)
    return {std::move(passed[0]), answer.length};
  log(LogLevel::kWarning, "the cache of uploads does not answer and is not used any more");
  requests_.reset();
  return {};
}

std::vector<wire::CachedEntry> UploadCache::list() {
  const Answer answer = ask(CacheAction::kList, {});
  std::vector<wire::CachedEntry> entries(
      std::min(answer.length / sizeof(wire::CachedEntry), wire::kMaxCachedUploads));
  if (!answer.file || !read_part(answer.file, 0, std::as_writable_bytes(std::span(entries))))
    return {};
  return entries;
}

Fd UploadCache::find(const wire::Digest& digest, uint64_t length) {
  Answer answer = ask(CacheAction::kFind, digest);
  if (length == 0 || answer.length == 0)
    return {};
  if (answer.length == length)
    return std::move(answer.file);
  tell(CacheAction::kRemove, digest);  // it was cut, or it was never the client's
  return {};
}

bool UploadCache::read(const Fd& file, const wire::Digest& digest, std::span<std::byte> into) {
  wire::Sha256 sum;
  for (uint64_t at = 0; at < into.size(); at += kReadBytes) {
    const auto part = into.subspan(at, std::min(kReadBytes, into.size() - at));
    if (!read_part(file, at, part))
      break;
    sum.add(part);
  }
  if (sum.finish() == digest)
    return true;
  log(LogLevel::kWarning, "an entry of the cache of uploads is damaged; the client sends it anew");
  tell(CacheAction::kRemove, digest);
  return false;
}

void UploadCache::save(uint64_t upload, uint64_t offset, uint64_t length,
                       std::span<const std::byte> part) {
  const SavedPart head{upload, offset, length, part.size()};
  if (!saves_ || part.size() > SavedPart::kMaxPart)
    return;
  const Clock::time_point deadline = Clock::now() + patience_;
  if (send_all(saves_, std::as_bytes(std::span(&head, 1)), deadline) &&
      send_all(saves_, part, deadline))
    return;
  log(LogLevel::kWarning, "the cache of uploads takes no more from this session");
  saves_.reset();
}

}  // namespace torch_remote::server
