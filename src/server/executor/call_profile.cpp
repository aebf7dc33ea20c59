#include "server/executor/call_profile.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace torch_remote::server {
namespace {

// CUDA queues about a thousand launches, so older calls than these are mostly done.
constexpr size_t kMostPendingCalls = 4096;

c10::impl::VirtualGuardImpl events() {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA);
}

uint64_t to_nanoseconds(double milliseconds) {
  return static_cast<uint64_t>(std::max(milliseconds, 0.0) * 1e6);
}

}  // namespace

uint64_t CallProfile::now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
}

CallProfile::~CallProfile() {
  drop_events();
}

void CallProfile::drop_events() noexcept {
  try {
    for (Pending& pending : pending_)
      give_back(pending);
    for (uint8_t device = 0; device < devices_.count(); ++device) {
      if (first_[device].event != nullptr)
        events_[device].push_back(first_[device].event);
      for (void* event : events_[device])
        events().destroyEvent(event, devices_.device(device).index());
      events_[device].clear();
    }
  } catch (...) {  // the device has failed: its events are lost with it
  }
  pending_.clear();
  first_ = {};
}

void CallProfile::start() {
  is_on_ = false;
  drop_events();
  calls_.clear();
  dropped_ = 0;
  if (devices_.is_cuda())
    for (uint8_t device = 0; device < devices_.count(); ++device)
      first_[device] = anchor(device);
  is_on_ = true;
}

void CallProfile::stop() {
  if (!is_on_)
    return;
  is_on_ = false;
  if (!devices_.is_cuda())
    return;
  settle(0);
  for (uint8_t device = 0; device < devices_.count(); ++device) {
    const Anchor last = anchor(device);
    events_[device].push_back(last.event);
    scale(device, last);
  }
  drop_events();
}

wire::CallTimes CallProfile::take() {
  stop();
  wire::CallTimes times;
  times.dropped = dropped_;
  while (!calls_.empty() && times.calls.size() < wire::kMaxProfiledBatch) {
    times.calls.push_back(calls_.front().time);
    calls_.pop_front();
  }
  times.left = calls_.size();
  return times;
}

void CallProfile::add(const Measured& measured) {
  if (calls_.size() == wire::kMaxProfiledCalls) {
    calls_.pop_front();
    ++dropped_;
  }
  calls_.push_back(measured);
}

// --- CUDA

void CallProfile::record(void*& event, uint8_t device) {
  const c10::Device where = devices_.device(device);
  events().record(&event, events().getStream(where), where.index(),
                  c10::EventFlag::BACKEND_DEFAULT);
}

void* CallProfile::take_event(uint8_t device) {
  auto& free = events_[device];
  if (free.empty())
    return nullptr;
  void* const event = free.back();
  free.pop_back();
  return event;
}

void CallProfile::give_back(Pending& pending) {
  for (void* event : {pending.begin, pending.end})
    if (event != nullptr)
      events_[pending.device].push_back(event);
}

CallProfile::Anchor CallProfile::anchor(uint8_t device) {
  devices_.synchronize(device);
  Anchor anchor{take_event(device), 0};
  const uint64_t before = now();
  record(anchor.event, device);
  events().synchronizeEvent(anchor.event);
  anchor.time = before + (now() - before) / 2;
  return anchor;
}

void CallProfile::settle(size_t most) {
  while (!pending_.empty()) {
    Pending& oldest = pending_.front();
    if (!events().queryEvent(oldest.end)) {
      if (pending_.size() <= most)
        return;
      events().synchronizeEvent(oldest.end);
    }
    const c10::DeviceIndex index = devices_.device(oldest.device).index();
    const auto elapsed = [&](void* from, void* to) {
      return to_nanoseconds(events().elapsedTime(from, to, index));
    };
    add({{oldest.call, elapsed(first_[oldest.device].event, oldest.begin),
          elapsed(oldest.begin, oldest.end), oldest.stream},
         oldest.device});
    give_back(oldest);
    pending_.pop_front();
  }
}

void CallProfile::scale(uint8_t device, const Anchor& last) {
  const Anchor& first = first_[device];
  const c10::DeviceIndex index = devices_.device(device).index();
  const double device_span = events().elapsedTime(first.event, last.event, index) * 1e6;
  const auto clock_span = static_cast<double>(last.time - first.time);
  const double factor = device_span > 0 ? clock_span / device_span : 1;
  for (Measured& measured : calls_) {
    if (measured.device != device)
      continue;
    measured.time.begin =
        first.time + static_cast<uint64_t>(static_cast<double>(measured.time.begin) * factor);
  }
}

// --- one call

void CallProfile::Timer::begin(uint64_t call, uint8_t device) noexcept {
  CallProfile& profile = profile_;
  profile.current_ = {call, device, profile.streams_.current(device)};
  is_begun_ = true;
  if (!profile.devices_.is_cuda()) {
    profile.current_begin_ = now();
    return;
  }
  try {
    profile.current_.begin = profile.take_event(device);
    profile.record(profile.current_.begin, device);
  } catch (...) {  // the device has failed: the call itself raises it
    is_begun_ = false;
    ++profile.dropped_;
  }
}

void CallProfile::Timer::end() noexcept {
  CallProfile& profile = profile_;
  Pending& current = profile.current_;
  try {
    if (!profile.devices_.is_cuda()) {
      const uint64_t begin = profile.current_begin_;
      return profile.add({{current.call, begin, now() - begin, current.stream}, current.device});
    }
    current.end = profile.take_event(current.device);
    profile.record(current.end, current.device);
    profile.pending_.push_back(current);
    if (profile.pending_.size() > kMostPendingCalls)
      profile.settle(kMostPendingCalls / 2);
  } catch (...) {  // the device has failed, or memory is short
    ++profile.dropped_;
  }
}

}  // namespace torch_remote::server
