#include "server/cache/cache_helper.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/call_filter.h"
#include "base/error.h"
#include "base/landlock.h"
#include "base/log.h"
#include "base/platform.h"
#include "server/cache/cache_folder.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// Uploads that are saved at the same time. Others are not saved.
constexpr size_t kMaxSavings = 8;

template <typename Struct>
std::span<std::byte> bytes_of(Struct& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

using Clock = std::chrono::steady_clock;

// Waits for the sockets of a session that may have ended and given them away.
class SessionWatch {
 public:
  // Nothing is watched where `session` is empty. It outlives this.
  explicit SessionWatch(const Fd& session) : session_(session.get()) {}

  // Until there is something to read. False: there will not be.
  bool wait(std::span<pollfd> polled) {
    std::array<pollfd, 3> all{};
    std::ranges::copy(polled, all.begin());
    while (Clock::now() < end_) {
      all[polled.size()] = {session_, POLLIN, 0};
      const int ready = ::poll(all.data(), polled.size() + 1, left());
      if (ready < 0 && errno != EINTR)
        return false;
      if (all[polled.size()].revents != 0)
        note_end();
      std::ranges::copy_n(all.begin(), static_cast<ptrdiff_t>(polled.size()), polled.begin());
      if (std::ranges::any_of(polled, [](const pollfd& one) { return one.revents != 0; }))
        return true;
    }
    return false;
  }

 private:
  void note_end() {
    session_ = -1;
    end_ = Clock::now() + kTimeToSave;
  }

  // For poll(), in milliseconds.
  int left() const {
    if (end_ == Clock::time_point::max())
      return -1;
    const auto time = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    return static_cast<int>(std::max<int64_t>(time.count(), 0));
  }

  int session_;
  Clock::time_point end_ = Clock::time_point::max();
};

// False: the session is gone.
bool read_all(SessionWatch& session, const Fd& from, std::span<std::byte> into) {
  while (!into.empty()) {
    pollfd polled{from.get(), POLLIN, 0};
    if (!session.wait(std::span(&polled, 1)))
      return false;
    const ssize_t got = ::read(from.get(), into.data(), into.size());
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    into = into.subspan(static_cast<size_t>(got));
  }
  return true;
}

// Sealed: the session that gets it could else fill memory that no limit counts.
Fd memory_with(std::span<const std::byte> bytes) {
  Fd memory(::memfd_create("torch-remote-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory ||
      ::pwrite(memory.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()) ||
      ::fcntl(memory.get(), F_ADD_SEALS,
              F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    throw_system_errno("memfd_create", errno);
  return memory;
}

class Helper {
 public:
  Helper(const CacheOptions& options, const CacheSockets& sockets, const Fd& session)
      : options_(options), sockets_(sockets), session_(session), buffer_(SavedPart::kMaxPart) {}

  ~Helper() {
    for (const auto& saving : savings_)
      folder_->drop(saving.second);
  }

  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  // When the session has ended, what it has sent before is still saved.
  void run() {
    std::array<pollfd, 2> polled{pollfd{sockets_.requests.get(), POLLIN, 0},
                                 pollfd{sockets_.saves.get(), POLLIN, 0}};
    while (polled[0].fd >= 0 || polled[1].fd >= 0) {
      if (!session_.wait(polled))
        break;
      if (polled[0].revents != 0) {  // first, for the owner is told before the first part is sent
        if (!answer())
          polled[0].fd = -1;
      } else if (!(folder_ && save())) {
        polled[1].fd = -1;
        ::shutdown(sockets_.saves.get(), SHUT_RDWR);
      }
    }
  }

 private:
  // False: the session is gone. Throws ProtocolError if it does not speak as ours does.
  bool answer() {
    CacheRequest request;
    const ssize_t got = ::recv(sockets_.requests.get(), &request, sizeof request, 0);
    if (got <= 0)
      return got < 0 && errno == EINTR;
    if (got != sizeof request || folder_.has_value() == (request.action == CacheAction::kOwner))
      throw ProtocolError("a session sent its helper an unknown request");
    switch (request.action) {
      case CacheAction::kOwner:
        folder_.emplace(CacheFolder::open(options_.folder), request.digest, options_.limit,
                        wire::kMinCachedUpload);
        return true;
      case CacheAction::kList: {
        const std::vector<wire::CachedEntry> entries = folder_->list();
        return send(memory_with(std::as_bytes(std::span(entries))));
      }
      case CacheAction::kFind: {
        Fd found = folder_->find(request.digest);
        return send(found ? std::move(found) : memory_with({}));
      }
      case CacheAction::kRemove:
        folder_->remove(request.digest);
        return true;
    }
    throw ProtocolError("a session sent its helper an unknown request");
  }

  bool send(const Fd& file) const {
    struct stat facts {};

    ::fstat(file.get(), &facts);
    CacheAnswer answer{static_cast<uint64_t>(facts.st_size)};
    return pass_descriptors(sockets_.requests, bytes_of(answer), std::array{file.get()}) ==
           Passed::kSent;
  }

  // False: the session sends no more parts.
  bool save() {
    SavedPart part;
    if (!read_all(session_, sockets_.saves, bytes_of(part)) || part.bytes > buffer_.size())
      return false;
    const std::span<std::byte> bytes = std::span(buffer_).first(part.bytes);
    if (!read_all(session_, sockets_.saves, bytes))
      return false;
    if (part.offset == 0 && savings_.size() < kMaxSavings && !savings_.contains(part.upload))
      if (auto begun = folder_->begin(part.length))
        savings_.emplace(part.upload, std::move(*begun));
    const auto found = savings_.find(part.upload);
    if (found == savings_.end())
      return true;
    CacheFolder::Saving& saving = found->second;
    const bool is_good = part.offset == saving.written && part.length == saving.length &&
                         CacheFolder::add(saving, bytes);
    if (is_good && saving.written < saving.length)
      return true;
    if (is_good)
      folder_->finish(std::move(saving));
    else
      folder_->drop(saving);
    savings_.erase(found);
    return true;
  }

  const CacheOptions& options_;
  const CacheSockets& sockets_;
  SessionWatch session_;
  std::optional<CacheFolder> folder_;  // once the owner is known
  std::map<uint64_t, CacheFolder::Saving> savings_;
  std::vector<std::byte> buffer_;
};

// Closes what a child of fork() has of the session, but for its two sockets and the session.
void leave_session(const CacheSockets& sockets, const Fd& session) {
  const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);
  ::dup2(nothing.get(), STDOUT_FILENO);
  std::array kept{sockets.requests.get(), sockets.saves.get(), session.get(), INT32_MAX};
  std::ranges::sort(kept);
  constexpr long kCloseRange = 436;
  int first = STDERR_FILENO + 1;
  for (const int next : kept) {
    const int last = next - 1;
    if (first <= last && ::syscall(kCloseRange, first, last, 0) != 0)
      for (int descriptor = first; descriptor <= std::min(last, 4096); ++descriptor)
        ::close(descriptor);
    first = std::max(first, next == INT32_MAX ? next : next + 1);
  }
}

// Best effort, as for sessions: Note [The sandbox] in server/session/sandbox.h.
void confine_to(const std::string& folder) {
  renounce_privileges();
  give_up_capabilities();
  try {
    restrict_files({{folder, FileRule::Access::kStore}});
  } catch (const std::system_error&) {
    // The kernel has no Landlock, which the session says.
  }
  try {
    CallNeeds needs;
    needs.stores_files = true;
    install_call_filter(needs);
  } catch (const std::system_error&) {
    // It has no seccomp, which the session says too.
  }
}

}  // namespace

void help_with_cache(const CacheOptions& options, const CacheSockets& sockets, const Fd& session) {
  try {
    Helper(options, sockets, session).run();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "uploads are not cached", {{"reason", error.what()}});
  }
}

CacheSockets start_cache_helper(const CacheOptions& options, std::span<char> secret) {
  CacheSockets ours;
  CacheSockets theirs;
  std::tie(ours.requests, theirs.requests) = message_pair();
  std::tie(ours.saves, theirs.saves) = socket_pair();
  const Fd session = watch_parent(::getpid());
  const pid_t child = ::fork();
  if (child < 0)
    throw_system_errno("fork", errno);
  if (child > 0)
    return ours;
  if (!secret.empty())
    ::explicit_bzero(secret.data(), secret.size());
  name_this_thread("tr-cache");
  ::signal(SIGINT, SIG_IGN);  // it ends with its session
  leave_session(theirs, session);
  // A session that does not take its answers keeps few descriptors on their way: the kernel limits
  // these for each user.
  const int bytes = 4096;
  ::setsockopt(theirs.requests.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  if (options.is_confined)
    confine_to(options.folder);
  help_with_cache(options, theirs, session);
  ::_exit(0);
}

}  // namespace torch_remote::server
