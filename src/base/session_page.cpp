#include "base/session_page.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "it is shared between processes");

// Constructs nothing: zeros are a valid page, and another process may use this memory already.
SessionPage* map_page(int access, int flags, int descriptor) {
  void* const memory = ::mmap(nullptr, sizeof(SessionPage), access, flags, descriptor, 0);
  if (memory == MAP_FAILED)
    throw_system_errno("mmap", errno);
  return static_cast<SessionPage*>(memory);
}

void check_size(const Fd& memory) {
  struct stat status {};

  if (::fstat(memory.get(), &status) != 0)
    throw_system_errno("fstat", errno);
  if (static_cast<size_t>(status.st_size) < sizeof(SessionPage))
    throw_system_errno("a session's page is too small", EINVAL);
}

// The bytes may be anything: a stray write, or somebody who took the session over, wrote them.
std::string printable(const char* text, size_t length, size_t most) {
  std::string printed(text, std::min(length, most));
  for (char& c : printed)
    if (c < ' ' || c > '~')
      c = '?';
  return printed;
}

}  // namespace

Fd SessionPage::make_memory() {
  return shared_memory("torch-remote-session", sizeof(SessionPage));
}

SessionPage::View SessionPage::view(const Fd& memory) {
  check_size(memory);
  return View(map_page(PROT_READ, MAP_SHARED, memory.get()));
}

SessionPage& SessionPage::map(const Fd& memory) {
  check_size(memory);
  return *map_page(PROT_READ | PROT_WRITE, MAP_SHARED, memory.get());
}

SessionPage& SessionPage::make_private() {
  return *map_page(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

void SessionPage::Unmap::operator()(const SessionPage* page) const noexcept {
  ::munmap(const_cast<SessionPage*>(page), sizeof(SessionPage));  // NOLINT: munmap has no const
}

void SessionPage::note_end(std::string_view reason) noexcept {
  if (reason.empty() || has_reason_.exchange(1, std::memory_order_relaxed) != 0)
    return;
  const size_t length = std::min(reason.size(), kReasonBytes);
  reason.copy(reason_.data(), length);
  reason_length_.store(static_cast<uint32_t>(length), std::memory_order_release);
}

std::string SessionPage::end() const {
  return printable(reason_.data(), reason_length_.load(std::memory_order_acquire), kReasonBytes);
}

void SessionPage::publish(const Figures& figures) noexcept {
  const auto values = std::bit_cast<std::array<uint64_t, kFigures>>(figures);
  for (size_t i = 0; i < kFigures; ++i)
    figures_[i].store(values[i], std::memory_order_relaxed);
}

SessionPage::Figures SessionPage::figures() const noexcept {
  std::array<uint64_t, kFigures> values{};
  for (size_t i = 0; i < kFigures; ++i)
    values[i] = figures_[i].load(std::memory_order_relaxed);
  return std::bit_cast<Figures>(values);
}

size_t SessionPage::add_operator(std::string_view name) noexcept {
  const uint64_t row = operator_count_.load(std::memory_order_relaxed);
  if (row >= kOperators)
    return kOperators - 1;
  if (row == kOperators - 1)
    name = "others";
  Operator& added = operators_[row];
  const size_t length = std::min(name.size(), kNameBytes);
  name.copy(added.name.data(), length);
  added.length.store(length, std::memory_order_relaxed);
  operator_count_.store(row + 1, std::memory_order_release);
  return row;
}

std::vector<SessionPage::OperatorTime> SessionPage::operator_times() const {
  const size_t count =
      std::min<size_t>(operator_count_.load(std::memory_order_acquire), kOperators);
  std::vector<OperatorTime> times;
  for (size_t i = 0; i < count; ++i) {
    const Operator& timed = operators_[i];
    const uint64_t calls = timed.calls.load(std::memory_order_relaxed);
    if (calls == 0)
      continue;
    const size_t length = timed.length.load(std::memory_order_relaxed);
    times.push_back({printable(timed.name.data(), length, kNameBytes), calls,
                     timed.nanoseconds.load(std::memory_order_relaxed)});
  }
  return times;
}

void SessionPage::note_facts(const Facts& facts) noexcept {
  const size_t peer = std::min(facts.peer.size(), kFactBytes);
  const size_t device = std::min(facts.device.size(), kFactBytes);
  const size_t sandbox = std::min(facts.sandbox.size(), kFactBytes);
  facts.peer.copy(peer_.data(), peer);
  facts.device.copy(device_.data(), device);
  facts.sandbox.copy(sandbox_.data(), sandbox);
  const std::array<uint64_t, 6> values{
      peer, device, sandbox, facts.devices, facts.device_memory, facts.started};
  for (size_t i = 0; i < values.size(); ++i)
    facts_[i].store(values[i], std::memory_order_release);
}

SessionPage::Facts SessionPage::facts() const {
  std::array<uint64_t, 6> values{};
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = facts_[i].load(std::memory_order_acquire);
  return {printable(peer_.data(), values[0], kFactBytes),
          printable(device_.data(), values[1], kFactBytes),
          printable(sandbox_.data(), values[2], kFactBytes),
          values[3],
          values[4],
          values[5]};
}

std::string SessionPage::last_calls(size_t count) const {
  const uint64_t last = last_.load(std::memory_order_acquire);
  const uint64_t shown = std::min<uint64_t>({last, kCalls, count});
  std::string text;
  for (uint64_t i = 0; i < shown; ++i) {  // `last` may be any number: it ends no loop
    const uint64_t number = last - shown + 1 + i;
    const Call& call = calls_[number % kCalls];
    text += (text.empty() ? "call " : ", call ") + std::to_string(number) + " " +
            printable(call.name.data(), call.length.load(std::memory_order_relaxed), kNameBytes);
  }
  return text;
}

std::string describe_kill(int wait_status) {
  if (!WIFSIGNALED(wait_status))
    return {};
  const int signal = WTERMSIG(wait_status);
  const char* const name = ::strsignal(signal);  // NOLINT(concurrency-mt-unsafe): glibc's is safe
  return "killed by signal " + std::to_string(signal) + " (" + name + ")";
}

std::string describe_failure(int wait_status) {
  if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) == 0)
    return {};
  return "ended with exit status " + std::to_string(WEXITSTATUS(wait_status));
}

}  // namespace torch_remote
