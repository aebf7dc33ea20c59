#include "server/executor/memory.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/text.h"
#include "server/device/out_of_memory.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

void add(wire::MemoryFigures& figures, std::string name, const Stat& stat) {
  figures.stats.push_back({std::move(name), stat.current, stat.peak, stat.allocated, stat.freed});
}

void add_pools(wire::MemoryFigures& figures, const std::string& name, const StatArray& stats) {
  static constexpr std::array<const char*, 3> kPools = {".all", ".small_pool", ".large_pool"};
  for (size_t i = 0; i < kPools.size(); ++i)
    add(figures, name + kPools[i], stats[i]);
}

c10::DeviceAllocator& cuda_allocator() {
  return *c10::getDeviceAllocator(c10::DeviceType::CUDA);
}

void act_on_cuda(c10::DeviceIndex device, wire::MemoryAction action) {
  switch (action) {
    case wire::MemoryAction::kAsk:
      return;
    case wire::MemoryAction::kEmptyCache:
      at::getHostAllocator(c10::DeviceType::CUDA)->empty_cache();
      return cuda_allocator().emptyCache();
    case wire::MemoryAction::kResetPeaks:
      return cuda_allocator().resetPeakStats(device);
    case wire::MemoryAction::kResetTotals:
      return cuda_allocator().resetAccumulatedStats(device);
  }
}

wire::MemoryFigures cuda_memory(c10::DeviceIndex device) {
  const DeviceStats stats = cuda_allocator().getDeviceStats(device);
  wire::MemoryFigures figures;
  add_pools(figures, "allocation", stats.allocation);
  add_pools(figures, "segment", stats.segment);
  add_pools(figures, "active", stats.active);
  add_pools(figures, "inactive_split", stats.inactive_split);
  add_pools(figures, "allocated_bytes", stats.allocated_bytes);
  add_pools(figures, "reserved_bytes", stats.reserved_bytes);
  add_pools(figures, "active_bytes", stats.active_bytes);
  add_pools(figures, "inactive_split_bytes", stats.inactive_split_bytes);
  add_pools(figures, "requested_bytes", stats.requested_bytes);
  add(figures, "oversize_allocations", stats.oversize_allocations);
  add(figures, "oversize_segments", stats.oversize_segments);
  figures.retries = static_cast<uint64_t>(stats.num_alloc_retries);
  figures.ooms = static_cast<uint64_t>(stats.num_ooms);
  const auto [free, total] = cuda_allocator().getMemoryInfo(device);
  figures.free = free;
  figures.total = total;
  return figures;
}

wire::MemoryFigures host_memory(const MemoryUse& use) {
  wire::MemoryFigures figures;
  for (const char* const name : {"allocation.all", "active.all", "segment.all"})
    add(figures, name, use.storages);
  for (const char* const name : {"allocated_bytes.all", "active_bytes.all", "requested_bytes.all"})
    add(figures, name, use.bytes);
  add(figures, "reserved_bytes.all", use.reserved);
  figures.ooms = use.ooms;
  figures.free = host_figure("MemAvailable:");
  figures.total = host_figure("MemTotal:");
  return figures;
}

}  // namespace

wire::MemoryFigures device_memory(const Devices& devices, StorageTable& storages,
                                  const wire::MemoryQuery& query) {
  const c10::Device device = devices.device(query.device);
  MemoryUse& use = storages.account().use(query.device);
  use.note_peaks();
  if (devices.is_cuda()) {
    storages.allocate_all(query.device);  // a tensor counts from torch.empty() on
    act_on_cuda(device.index(), query.action);
  } else if (query.action == wire::MemoryAction::kResetPeaks) {
    for (Stat* const stat : {&use.bytes, &use.reserved, &use.storages})
      stat->reset_peak();
  } else if (query.action == wire::MemoryAction::kResetTotals) {
    for (Stat* const stat : {&use.bytes, &use.reserved, &use.storages})
      stat->reset_accumulated();
  }
  wire::MemoryFigures figures = devices.is_cuda() ? cuda_memory(device.index()) : host_memory(use);
  const StorageTotals totals = storages.account().totals();
  figures.total = std::min(figures.total, totals.limit);
  figures.free = std::min(figures.free, totals.limit - std::min(totals.held, totals.limit));
  return figures;
}

void add_memory_figures(wire::Error& failure, StorageTable& storages, uint8_t device) {
  if (failure.wanted != 0 || failure.free != 0)
    return;
  if (const auto cuda = read_shortage(failure.message)) {
    failure.wanted = cuda->wanted;
    failure.free = cuda->free;
    return;
  }
  const MemoryUse& use = storages.account().use(device);
  MemoryShortage shortage;
  shortage.wanted = wanted_bytes(failure.message);
  shortage.capacity = host_figure("MemTotal:");
  shortage.free = host_figure("MemAvailable:");
  const auto named = static_cast<uint64_t>(use.bytes.current);
  const uint64_t held = storages.account().totals().held;
  shortage.allocated = std::min(named, held);  // without those to be allocated
  const uint64_t without_memory = named - shortage.allocated;
  shortage.reserved = static_cast<uint64_t>(use.reserved.current) - without_memory;
  failure.wanted = shortage.wanted;
  failure.free = shortage.free;
  failure.message = describe_shortage("CPU", shortage) + " (" + failure.message + ")";
  failure.message.resize(cut_text(failure.message, wire::kMaxErrorText).size());
}

}  // namespace torch_remote::server
