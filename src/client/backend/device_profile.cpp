#include "client/backend/device_profile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "client/operators/operator.h"
#include "client/process/threads.h"
#include "client/session/session.h"

namespace torch_remote::client {
namespace {

// The shortest round trip of so many tells the difference of the clocks best. A server far away is
// asked less often.
constexpr int kClockReadings = 12;
constexpr int kFewestReadings = 3;
constexpr int64_t kReadingTime = 100'000'000;  // nanoseconds

int64_t local_time() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

std::vector<std::byte> ask(Session& session, wire::ProfileAction action) {
  return session.query(wire::QueryKind::kProfile, "a profile",
                       [&](wire::Writer& writer) { wire::encode_profile_query(writer, action); });
}

ClockReading read_clocks(Session& session) {
  ClockReading best;
  best.error = INT64_MAX;
  const int64_t begin = local_time();
  for (int i = 0; i < kClockReadings; ++i) {
    const int64_t before = local_time();
    if (i >= kFewestReadings && before - begin > kReadingTime)
      break;
    const auto body = ask(session, wire::ProfileAction::kClock);
    const int64_t round_trip = local_time() - before;
    const auto there = static_cast<int64_t>(decode_answer(session, body, wire::decode_clock));
    if (round_trip / 2 < best.error)
      best = {before + round_trip / 2, there, round_trip / 2};
  }
  return best;
}

// By time. The calls of a program all have the number of its run. If the server has forgotten the
// first times (`is_cut`), what it has of the first run is its end.
std::vector<std::optional<CallSite>> sites_of(MessageOrder& order,
                                              const std::vector<wire::CallTime>& times,
                                              bool is_cut) {
  std::vector<std::optional<CallSite>> sites;
  while (sites.size() < times.size()) {
    const size_t begin = sites.size();
    const uint64_t number = times[begin].call;
    size_t end = begin + 1;
    while (end < times.size() && times[end].call == number)
      ++end;
    const auto site = order.site_of(number);
    if (!site || site->operation != kRunSite) {
      sites.resize(end, site);
      continue;
    }
    std::vector<CallSite> calls = order.program_sites().calls_of_run(number);
    size_t next = is_cut && begin == 0 && calls.size() > end ? calls.size() - end : 0;
    for (; sites.size() < end; ++next) {
      sites.emplace_back();
      if (next >= calls.size())
        continue;
      calls[next].thread = site->thread;
      sites.back() = calls[next];
    }
  }
  return sites;
}

// Of this thread, never reused.
uint64_t worker_number() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

int64_t to_local_time(uint64_t there, const ClockReading& first, const ClockReading& last) {
  const int64_t since = static_cast<int64_t>(there) - first.there;
  const int64_t span = last.there - first.there;
  const int64_t gained = (last.here - first.here) - span;
  const double part = span > 0 ? static_cast<double>(since) / static_cast<double>(span) : 0;
  return first.here + since + static_cast<int64_t>(static_cast<double>(gained) * part);
}

void OperationMarks::begin(uint64_t operation, uint64_t last_call, uint64_t thread,
                           uint64_t worker) {
  marks_.push_back({operation, last_call, thread, worker});
}

void OperationMarks::end(uint64_t last_call, uint64_t thread, uint64_t worker) {
  marks_.push_back({0, last_call, thread, worker});
}

void OperationMarks::assign(std::vector<DeviceCall>& calls) const {
  // Threads note their marks one after the other, but with numbers that they read before.
  std::unordered_map<uint64_t, std::vector<const Mark*>> by_thread;
  for (const Mark& mark : marks_)
    by_thread[mark.thread].push_back(&mark);
  std::unordered_map<uint64_t, std::vector<DeviceCall*>> calls_of;
  for (DeviceCall& call : calls)
    calls_of[call.site.thread].push_back(&call);
  for (const auto& [thread, its_calls] : calls_of) {
    const std::vector<const Mark*>& marks = by_thread[thread];
    std::vector<const Mark*> open;
    auto next = marks.begin();
    for (DeviceCall* call : its_calls) {
      for (; next != marks.end() && (*next)->last_call < call->number; ++next) {
        if ((*next)->operation != 0) {
          open.push_back(*next);
          continue;
        }
        const auto found = std::find_if(open.rbegin(), open.rend(), [&](const Mark* mark) {
          return mark->worker == (*next)->worker;
        });
        if (found != open.rend())
          open.erase(std::next(found).base());
      }
      call->operation = open.empty() ? 0 : open.back()->operation;
    }
  }
}

bool can_profile(Session& session) {
  return (session.welcome().capabilities & wire::kProfileCapability) != 0;
}

DeviceProfile::DeviceProfile(Session& session) : session_(session) {
  ask(session, wire::ProfileAction::kStart);
  last_before_ = session.order().submitted();
  first_ = read_clocks(session);
}

void DeviceProfile::begin_operation(uint64_t operation) {
  const uint64_t last = session_.order().submitted();
  MutexLock lock(mutex_);
  marks_.begin(operation, last, current_thread(), worker_number());
}

void DeviceProfile::end_operation() {
  const uint64_t last = session_.order().submitted();
  MutexLock lock(mutex_);
  marks_.end(last, current_thread(), worker_number());
}

// What all answers together bring is what a server keeps.
std::vector<wire::CallTime> DeviceProfile::take_times(uint64_t& dropped) {
  std::vector<wire::CallTime> times;
  while (true) {
    const auto body = ask(session_, wire::ProfileAction::kTake);
    const wire::CallTimes part = decode_answer(session_, body, [&](wire::Reader& reader) {
      wire::CallTimes decoded = wire::decode_call_times(reader);
      wire::check_limit("profiled calls", times.size() + decoded.calls.size(),
                        wire::kMaxProfiledCalls);
      return decoded;
    });
    times.insert(times.end(), part.calls.begin(), part.calls.end());
    dropped = part.dropped;
    if (part.calls.empty() || part.left == 0)
      return times;
  }
}

std::vector<DeviceCall> DeviceProfile::finish(uint64_t& dropped) {
  const std::vector<wire::CallTime> times = take_times(dropped);
  const ClockReading last = read_clocks(session_);
  log(LogLevel::kInfo, "profile",
      {{"calls", std::to_string(times.size())},
       {"clocks differ by at most", std::to_string(std::max(first_.error, last.error)) + " ns"}});
  std::vector<DeviceCall> calls;
  const std::vector<std::optional<CallSite>> sites = sites_of(session_.order(), times, dropped > 0);
  for (size_t i = 0; i < times.size(); ++i) {
    const wire::CallTime& time = times[i];
    const std::optional<CallSite>& site = sites[i];
    if (time.call <= last_before_)
      continue;
    if (!site) {
      ++dropped;
      continue;
    }
    calls.push_back({time.call, operator_at(site->operation), *site,
                     to_local_time(time.begin, first_, last), static_cast<int64_t>(time.duration),
                     time.stream});
  }
  MutexLock lock(mutex_);
  marks_.assign(calls);
  return calls;
}

namespace {

struct Notes {
  Mutex mutex;
  std::vector<std::string> texts GUARDED_BY(mutex);
};

Notes& notes() {
  static Notes& all = *new Notes;  // leaks: profiles may end while the process does
  return all;
}

}  // namespace

void add_profile_note(std::string text) {
  MutexLock lock(notes().mutex);
  notes().texts.push_back(std::move(text));
}

std::vector<std::string> take_profile_notes() {
  MutexLock lock(notes().mutex);
  return std::exchange(notes().texts, {});
}

}  // namespace torch_remote::client
