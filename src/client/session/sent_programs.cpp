#include "client/session/sent_programs.h"

#include <algorithm>
#include <iterator>

#include "wire/limits.h"

namespace torch_remote::client {
namespace {

// What all programs of a session may have together. In the server's memory a step takes some 700
// bytes, a byte of slots 16 at most, and a byte of a signature some hundred at worst; a program may
// keep a signature longer than the table does. So the sums stay below the server's
// kMaxProgramMemory and kMaxSignatureMemory.
constexpr uint64_t kMostSteps = 1 << 20;
constexpr uint64_t kMostBytes = 16 << 20;

}  // namespace

bool SentPrograms::use(uint64_t program) {
  const auto found = positions_.find(program);
  if (found == positions_.end())
    return false;
  by_use_.splice(by_use_.end(), by_use_, found->second);
  return true;
}

std::vector<uint64_t> SentPrograms::add(uint64_t program, Size size) {
  std::vector<uint64_t> dropped;
  while (!by_use_.empty() && is_full(size)) {
    dropped.push_back(by_use_.front().program);
    forget(by_use_.begin());
  }
  positions_.emplace(program, by_use_.insert(by_use_.end(), {program, size}));
  all_.steps += size.steps;
  all_.bytes += size.bytes;
  return dropped;
}

bool SentPrograms::remove(uint64_t program) {
  const auto found = positions_.find(program);
  if (found == positions_.end())
    return false;
  forget(found->second);
  return true;
}

bool SentPrograms::is_full(Size more) const {
  return by_use_.size() >= wire::kMaxPrograms || all_.steps + more.steps > kMostSteps ||
         all_.bytes + more.bytes > kMostBytes;
}

void SentPrograms::forget(Position position) {
  all_.steps -= position->size.steps;
  all_.bytes -= position->size.bytes;
  positions_.erase(position->program);
  by_use_.erase(position);
}

// --- ProgramSites

void ProgramSites::add(uint64_t program, std::vector<CallSite> steps) {
  MutexLock lock(mutex_);
  steps_.emplace(program, std::move(steps));
}

void ProgramSites::retire(uint64_t program) {
  MutexLock lock(mutex_);
  retired_.push_back(program);
  if (retired_.size() <= kRetired)
    return;
  steps_.erase(retired_.front());
  retired_.pop_front();
}

std::optional<CallSite> ProgramSites::find(uint64_t program, uint64_t step) {
  MutexLock lock(mutex_);
  const auto found = steps_.find(program);
  if (found == steps_.end() || step >= found->second.size())
    return std::nullopt;
  return found->second[step];
}

void ProgramSites::note_run(uint64_t call, uint64_t program) {
  MutexLock lock(mutex_);
  if (runs_.size() == kRuns)
    runs_.pop_front();
  runs_.push_back({call, program});
}

std::vector<CallSite> ProgramSites::calls_of_run(uint64_t call) {
  MutexLock lock(mutex_);
  const auto run = std::ranges::lower_bound(runs_, call, {}, &RunOf::call);
  if (run == runs_.end() || run->call != call)
    return {};
  const auto steps = steps_.find(run->program);
  if (steps == steps_.end())
    return {};
  std::vector<CallSite> calls;
  std::ranges::copy_if(steps->second, std::back_inserter(calls),
                       [](const CallSite& site) { return site.operation != 0; });
  return calls;
}

}  // namespace torch_remote::client
