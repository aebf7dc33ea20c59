#include "server/executor/storage_account.h"

#include "server/device/out_of_memory.h"

namespace torch_remote::server {
namespace {

uint64_t whole_units(uint64_t nbytes) {
  constexpr uint64_t kUnit = 512;  // as CUDA's allocator, and the client's snapshots
  return (nbytes + kUnit - 1) / kUnit * kUnit;
}

// Without the peak: MemoryUse::note_peaks().
void change(c10::CachingAllocator::Stat& stat, uint64_t before, uint64_t after) {
  const int64_t peak = stat.peak;
  if (after >= before)
    stat.increase(after - before);
  else
    stat.decrease(before - after);
  stat.peak = peak;
}

}  // namespace

void StorageAccount::check_new(uint64_t nbytes) const {
  wire::check_limit("storages of a session", storages_ + 1, limits_.storages);
  wire::check_limit("bytes of a storage", nbytes, wire::kMaxStorageBytes);
}

void StorageAccount::check_room(const Entry& entry, uint64_t nbytes, uint64_t used) const {
  const uint64_t room = limits_.bytes - std::min(used, limits_.bytes);
  if (nbytes <= room)
    return;
  const MemoryShortage shortage{nbytes, limits_.bytes, room, used, used};
  throw LimitReached(describe_shortage(entry.device.is_cpu() ? "CPU" : "CUDA", shortage) +
                         " The bytes of a session are limited to " + std::to_string(limits_.bytes) +
                         " (serve --max-memory)",
                     shortage);
}

void StorageAccount::hold(Entry& entry, uint64_t nbytes) {
  if (nbytes > entry.held)
    check_room(entry, nbytes, used_bytes() - entry.held);
  set_held(entry, nbytes);
}

void StorageAccount::set_held(Entry& entry, uint64_t nbytes) {
  held_bytes_ += nbytes - entry.held;
  entry.held = nbytes;
  if (limits_.bytes != UINT64_MAX)
    warm_.set_room(limits_.bytes - std::min(used_bytes(), limits_.bytes));
}

void StorageAccount::check_room(const Entry& entry, uint64_t nbytes) const {
  check_room(entry, nbytes, used_bytes());
}

void StorageAccount::set_bytes(Entry& entry, uint64_t nbytes) {
  MemoryUse& use = use_[entry.number];
  if (nbytes != entry.nbytes) {  // an output mostly has the size that was predicted
    total_bytes_ += nbytes - entry.nbytes;
    change(use.bytes, entry.nbytes, nbytes);
    change(use.reserved, whole_units(entry.nbytes), whole_units(nbytes));
    entry.nbytes = nbytes;
  }
  if (entry.storage)
    use.note_peaks();
}

}  // namespace torch_remote::server
