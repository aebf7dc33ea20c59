#include "server/device/streams.h"

#include <deque>
#include <thread>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"
#include "base/mutex.h"

namespace torch_remote::server {
namespace {

using Clock = std::chrono::steady_clock;

// Streams above this number have high priority.
constexpr uint64_t kLastNormal = wire::kMaxStreams / 2;

c10::impl::VirtualGuardImpl cuda() {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA);
}

}  // namespace

// On CUDA a native event, on a CPU the time at which the server reached it.
struct Streams::Event {
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  ~Event() {
    if (native != nullptr)
      cuda().destroyEvent(native, device);
  }

  void* native = nullptr;
  c10::DeviceIndex device = 0;
  uint64_t line = 0;  // whose Completions wait for it
  bool is_timed = false;
  Clock::time_point reached{};
};

// A thread that waits for events and then runs what was to run after them.
class Completions {
 public:
  Completions() : thread_([this] { run(); }) {}

  ~Completions() {
    {
      MutexLock lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  void add(std::function<void()> wait, Streams::OnDone on_done) {
    {
      MutexLock lock(mutex_);
      waiting_.push_back({std::move(wait), std::move(on_done)});
    }
    changed_.notify_all();
  }

 private:
  struct Waiting {
    std::function<void()> wait;
    Streams::OnDone on_done;
  };

  void run() {
    for (Waiting next; take(next); next = {}) {
      std::exception_ptr failure;
      try {
        next.wait();
      } catch (...) {
        failure = std::current_exception();
      }
      try {
        next.on_done(failure);
      } catch (const std::exception&) {
        // The session has ended: nobody is left to be answered.
      }
    }
  }

  bool take(Waiting& next) {
    MutexLock lock(mutex_);
    while (!is_over_ && waiting_.empty())
      changed_.wait(mutex_);
    if (is_over_)
      return false;
    next = std::move(waiting_.front());
    waiting_.pop_front();
    return true;
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  bool is_over_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

Streams::Streams(const Devices& devices) : devices_(devices) {}

Streams::~Streams() = default;

c10::Stream Streams::native(uint8_t device, uint64_t stream) {
  const c10::Device where = devices_.device(device);
  if (stream == 0)
    return cuda().getDefaultStream(where);
  auto& made = made_[device];
  if (made.size() < stream)
    made.resize(stream);
  if (made[stream - 1] == nullptr)
    made[stream - 1] =
        std::make_unique<c10::Stream>(cuda().getNewStream(where, stream > kLastNormal ? -1 : 0));
  return *made[stream - 1];
}

void Streams::set_native(uint8_t device, uint64_t stream) {
  if (devices_.is_cuda())
    cuda().exchangeStream(native(device, stream));
  current_[device] = static_cast<uint8_t>(stream);
}

void Streams::use(uint8_t device, uint64_t stream) {
  devices_.device(device);  // refuses one that is not there
  has_several_ = has_several_ || stream != 0;
  set_native(device, stream);
}

Streams::EventPtr Streams::find(uint64_t event) const {
  const auto found = events_.find(event);
  if (found == events_.end())
    throw ProtocolError("no event has the name " + std::to_string(event));
  return found->second;
}

Streams::EventPtr Streams::record_now(uint8_t device, uint64_t stream, bool is_timed) {
  auto event = std::make_shared<Event>();
  event->device = devices_.device(device).index();
  event->line = device * (wire::kMaxStreams + 1) + stream;
  event->is_timed = is_timed;
  event->reached = Clock::now();
  if (devices_.is_cuda())
    cuda().record(&event->native, native(device, stream), event->device,
                  is_timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  return event;
}

void Streams::record(uint64_t event, uint8_t device, uint64_t stream, bool is_timed) {
  if (!events_.contains(event))
    wire::check_limit("events of a session", events_.size() + 1, wire::kMaxEvents);
  events_[event] = record_now(device, stream, is_timed);
}

void Streams::wait(uint64_t event, uint8_t device, uint64_t stream) {
  const EventPtr waited = find(event);
  devices_.device(device);
  if (waited->native != nullptr)
    cuda().block(waited->native, native(device, stream));
}

void Streams::forget(uint64_t event) {
  if (events_.erase(event) == 0)
    throw ProtocolError("no event has the name " + std::to_string(event));
}

void Streams::record_stream(const c10::DataPtr& memory, uint8_t device, uint64_t stream) {
  devices_.device(device);
  if (devices_.is_cuda() && memory.get() != nullptr)
    cuda().recordDataPtrOnStream(memory, native(device, stream));
}

void Streams::join(uint8_t device, uint64_t other) {
  if (!devices_.is_cuda() || current_[device] == other)
    return;
  const EventPtr done = record_now(device, other, false);
  cuda().block(done->native, native(device, current_[device]));
}

bool Streams::has_happened(uint64_t event) {
  const EventPtr asked = find(event);
  return asked->native == nullptr || cuda().queryEvent(asked->native);
}

bool Streams::is_done(uint8_t device, uint64_t stream) {
  devices_.device(device);
  return !devices_.is_cuda() || cuda().queryStream(native(device, stream));
}

double Streams::elapsed(uint64_t first, uint64_t second) {
  const EventPtr from = find(first);
  const EventPtr to = find(second);
  TORCH_CHECK_VALUE(from->is_timed && to->is_timed,
                    "Both events must be created with argument 'enable_timing=True'.");
  if (from->native == nullptr)
    return std::chrono::duration<double, std::milli>(to->reached - from->reached).count();
  TORCH_CHECK(cuda().queryEvent(from->native) && cuda().queryEvent(to->native),
              "Both events must be completed before calculating elapsed time.");
  return cuda().elapsedTime(from->native, to->native, from->device);
}

void Streams::when_happened(uint64_t event, OnDone on_done) {
  wait_later(find(event), std::move(on_done));
}

void Streams::when_done(uint8_t device, uint64_t stream, OnDone on_done) {
  wait_later(record_now(device, stream, false), std::move(on_done));
}

void Streams::wait_later(EventPtr event, OnDone on_done) {
  if (event->native == nullptr)
    return on_done(nullptr);
  auto& completions = completions_[event->line];
  if (completions == nullptr)
    completions = std::make_unique<Completions>();
  completions->add([event] { cuda().synchronizeEvent(event->native); }, std::move(on_done));
}

Streams::Scope::Scope(Streams& streams, uint8_t device, uint8_t stream)
    : streams_(streams), device_(device), before_(streams.current(device)) {
  if (before_ != stream)
    streams_.set_native(device, stream);
}

Streams::Scope::~Scope() {
  if (streams_.current(device_) != before_)
    streams_.set_native(device_, before_);
}

}  // namespace torch_remote::server
