#include "client/backend/allocator.h"

#include "client/backend/streams.h"
#include "client/call/copy.h"
#include "client/machines/machines.h"
#include "client/memory/memory_figures.h"
#include "client/memory/storage.h"
#include "client/process/current_device.h"

namespace torch_remote::client {

RemoteAllocator& RemoteAllocator::instance() {
  static auto* allocator = new RemoteAllocator;
  return *allocator;
}

c10::DataPtr RemoteAllocator::allocate(size_t nbytes) {
  return allocate_remote(nbytes, current_device());
}

void RemoteAllocator::copy_data(void* destination, const void* source, size_t count) const {
  copy_addresses(destination, source, count);
}

bool RemoteAllocator::initialized() {
  return Machines::instance().is_initialized();
}

// --- figures

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

// Where PyTorch keeps a figure of this name, without its pool; null: nowhere.
StatArray* find_pools(DeviceStats& stats, std::string_view name) {
  if (name == "allocation")
    return &stats.allocation;
  if (name == "segment")
    return &stats.segment;
  if (name == "active")
    return &stats.active;
  if (name == "inactive_split")
    return &stats.inactive_split;
  if (name == "allocated_bytes")
    return &stats.allocated_bytes;
  if (name == "reserved_bytes")
    return &stats.reserved_bytes;
  if (name == "active_bytes")
    return &stats.active_bytes;
  if (name == "inactive_split_bytes")
    return &stats.inactive_split_bytes;
  return name == "requested_bytes" ? &stats.requested_bytes : nullptr;
}

Stat* find_stat(DeviceStats& stats, std::string_view name) {
  if (name == "oversize_allocations")
    return &stats.oversize_allocations;
  if (name == "oversize_segments")
    return &stats.oversize_segments;
  const size_t dot = name.find('.');
  StatArray* const pools = find_pools(stats, name.substr(0, dot));
  if (pools == nullptr || dot == std::string_view::npos)
    return nullptr;
  const std::string_view pool = name.substr(dot + 1);
  return pool == "all"          ? &(*pools)[0]
         : pool == "small_pool" ? &(*pools)[1]
         : pool == "large_pool" ? &(*pools)[2]
                                : nullptr;
}

}  // namespace

wire::MemoryFigures device_memory(c10::DeviceIndex index, wire::MemoryAction action) {
  if (!Machines::instance().is_initialized())
    return {};
  const DevicePlace place = Machines::instance().place(index < 0 ? current_device() : index);
  return memory_figures(*place.session, place.device, action);
}

void limit_device_memory(c10::DeviceIndex index, double fraction) {
  const DevicePlace place = Machines::instance().place(index < 0 ? current_device() : index);
  limit_memory(*place.session, place.device, fraction);
}

double device_memory_limit(c10::DeviceIndex index) {
  if (!Machines::instance().is_initialized())
    return 1;
  const DevicePlace place = Machines::instance().place(index < 0 ? current_device() : index);
  return place.session->order().memory(place.device).allowed_fraction();
}

DeviceStats RemoteAllocator::getDeviceStats(c10::DeviceIndex device) {
  const wire::MemoryFigures figures = device_memory(device, wire::MemoryAction::kAsk);
  DeviceStats stats;
  for (const wire::MemoryStat& figure : figures.stats)
    if (Stat* const stat = find_stat(stats, figure.name))
      *stat = {figure.current, figure.peak, figure.allocated, figure.freed};
  stats.num_alloc_retries = static_cast<int64_t>(figures.retries);
  stats.num_ooms = static_cast<int64_t>(figures.ooms);
  return stats;
}

void RemoteAllocator::emptyCache(c10::MempoolId_t /*pool*/) {
  for (c10::DeviceIndex index = 0; index < kMaxDevices; ++index)
    if (Machines::instance().has_device(index))
      device_memory(index, wire::MemoryAction::kEmptyCache);
}

void RemoteAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  record_stream(data, stream);
}

void RemoteAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  device_memory(device, wire::MemoryAction::kResetTotals);
}

void RemoteAllocator::resetPeakStats(c10::DeviceIndex device) {
  device_memory(device, wire::MemoryAction::kResetPeaks);
}

std::pair<size_t, size_t> RemoteAllocator::getMemoryInfo(c10::DeviceIndex device) {
  const wire::MemoryFigures figures = device_memory(device, wire::MemoryAction::kAsk);
  return {figures.free, figures.total};
}

}  // namespace torch_remote::client
