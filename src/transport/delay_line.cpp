#include "transport/delay_line.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "base/platform.h"

namespace torch_remote::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRunSize = 64 << 10;
// The destructor waits this much longer than the delay for written bytes to be sent.
constexpr std::chrono::milliseconds kDrainGrace{200};

constexpr size_t kMostHeld = size_t{256} << 20;
constexpr double kLinkBuffer = 4 << 20;  // bytes that may wait for a limited link

// One direction of a delayed stream: runs of bytes with their due times. Thread-safe.
class DelayQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Bytes = std::vector<std::byte>;

  explicit DelayQueue(const DelaySpec& spec);

  // Waits for room. False: stop() or cut() was called.
  bool push(std::span<const std::byte> bytes) EXCLUDES(mutex_);
  // Nothing more will be pushed. When all runs are taken, pop() returns the end or throws `error`.
  void finish(std::exception_ptr error) EXCLUDES(mutex_);
  // Waits until the next run is due. Empty: the end.
  Bytes pop() EXCLUDES(mutex_);
  // From now on push() returns false; what is in the queue still comes out.
  void stop() noexcept EXCLUDES(mutex_);
  // Like stop(), and pop() returns the end at once.
  void cut() noexcept EXCLUDES(mutex_);
  Clock::time_point last_due() EXCLUDES(mutex_);

 private:
  struct Run {
    Clock::time_point due;
    Bytes bytes;
  };

  Clock::time_point due_time(size_t bytes) REQUIRES(mutex_);
  bool wait_for_room(size_t bytes) REQUIRES(mutex_);

  const Clock::duration delay_;
  const Clock::duration jitter_;
  const double nanoseconds_per_byte_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Run> runs_ GUARDED_BY(mutex_);
  size_t held_bytes_ GUARDED_BY(mutex_) = 0;
  Clock::time_point link_free_ GUARDED_BY(mutex_);  // when the link has sent all bytes so far
  Clock::time_point last_due_ GUARDED_BY(mutex_);
  std::minstd_rand random_ GUARDED_BY(mutex_);  // constant seed: every test run has the same jitter
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool cut_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  Clock::time_point finish_due_ GUARDED_BY(mutex_);
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

DelayQueue::DelayQueue(const DelaySpec& spec)
    : delay_(std::chrono::nanoseconds(spec.rtt) / 2),
      jitter_(spec.jitter),
      nanoseconds_per_byte_(spec.mbit_s > 0 ? 8000.0 / spec.mbit_s : 0.0) {}

bool DelayQueue::push(std::span<const std::byte> bytes) {
  Bytes copy(bytes.begin(), bytes.end());
  MutexLock lock(mutex_);
  if (!wait_for_room(bytes.size()))
    return false;
  const Clock::time_point due = due_time(bytes.size());
  held_bytes_ += copy.size();
  runs_.push_back({due, std::move(copy)});
  changed_.notify_all();
  return true;
}

void DelayQueue::finish(std::exception_ptr error) {
  MutexLock lock(mutex_);
  if (finished_)
    return;
  finished_ = true;
  finish_due_ = due_time(0);
  error_ = std::move(error);
  changed_.notify_all();
}

DelayQueue::Bytes DelayQueue::pop() {
  MutexLock lock(mutex_);
  for (;;) {
    if (cut_)
      return {};
    if (runs_.empty() && !finished_) {
      changed_.wait(mutex_);
      continue;
    }
    const Clock::time_point due = runs_.empty() ? finish_due_ : runs_.front().due;
    if (Clock::now() < due) {
      changed_.wait_until(mutex_, due);
      continue;
    }
    break;
  }
  if (runs_.empty()) {
    if (error_)
      std::rethrow_exception(error_);
    return {};
  }
  Bytes bytes = std::move(runs_.front().bytes);
  runs_.pop_front();
  held_bytes_ -= bytes.size();
  changed_.notify_all();
  return bytes;
}

void DelayQueue::stop() noexcept {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void DelayQueue::cut() noexcept {
  MutexLock lock(mutex_);
  stopped_ = true;
  cut_ = true;
  changed_.notify_all();
}

DelayQueue::Clock::time_point DelayQueue::last_due() {
  MutexLock lock(mutex_);
  return last_due_;
}

bool DelayQueue::wait_for_room(size_t bytes) {
  const auto ahead = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::nano>(kLinkBuffer * nanoseconds_per_byte_));
  while (!stopped_) {
    if (held_bytes_ + bytes > kMostHeld && held_bytes_ > 0) {
      changed_.wait(mutex_);
      continue;
    }
    if (link_free_ > Clock::now() + ahead) {
      changed_.wait_until(mutex_, link_free_ - ahead);
      continue;
    }
    return true;
  }
  return false;
}

DelayQueue::Clock::time_point DelayQueue::due_time(size_t bytes) {
  const auto on_the_link = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::nano>(static_cast<double>(bytes) * nanoseconds_per_byte_));
  link_free_ = std::max(link_free_, Clock::now()) + on_the_link;
  std::uniform_int_distribution<Clock::rep> more(0, jitter_.count());
  last_due_ = std::max(last_due_, link_free_ + delay_ + Clock::duration(more(random_)));
  return last_due_;
}

// Thread-safe as Stream requires. The sender thread writes outgoing bytes when they are due. The
// receiver thread reads ahead and notes when incoming bytes are due; read_some() waits for that.
class DelayedStream : public Stream {
 public:
  DelayedStream(std::unique_ptr<Stream> inner, const DelaySpec& spec)
      : inner_(std::move(inner)), outgoing_(spec), incoming_(spec) {
    sender_ = std::thread([this] { run_sender(); });
    try {
      receiver_ = std::thread([this] { run_receiver(); });
    } catch (...) {  // no thread could be started
      outgoing_.cut();
      sender_.join();
      throw;
    }
  }

  ~DelayedStream() override {
    DelayedStream::shutdown();
    wait_for_sender(outgoing_.last_due() + kDrainGrace);
    outgoing_.cut();
    inner_->shutdown();
    sender_.join();
    receiver_.join();
  }

  size_t read_some(std::span<std::byte> into) override {
    if (used_ == current_.size()) {
      current_ = incoming_.pop();
      used_ = 0;
    }
    const size_t count = std::min(into.size(), current_.size() - used_);
    if (count > 0)
      std::memcpy(into.data(), current_.data() + used_, count);
    used_ += count;
    return count;
  }

  void write(std::span<const std::span<const std::byte>> parts) override {
    DelayQueue::Bytes run;
    for (std::span<const std::byte> part : parts) {
      while (!part.empty()) {
        const size_t count = std::min(part.size(), kRunSize - run.size());
        run.insert(run.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(count));
        part = part.subspan(count);
        if (run.size() == kRunSize)
          push(run);
      }
    }
    push(run);
  }

  void shutdown() noexcept override {
    outgoing_.stop();
    incoming_.cut();
    outgoing_.finish(nullptr);
  }

  std::string peer() const override { return inner_->peer(); }

  void close_in_forked_child() noexcept override { inner_->close_in_forked_child(); }

 private:
  void push(DelayQueue::Bytes& run) {
    if (!run.empty() && !outgoing_.push(run))
      throw_write_error();
    run.clear();
  }

  [[noreturn]] void throw_write_error() {
    MutexLock lock(mutex_);
    if (write_error_)
      std::rethrow_exception(write_error_);
    throw ConnectionError("the connection to " + inner_->peer() + " was shut down on this side");
  }

  void run_sender() noexcept {
    begin_worker_thread("tr-delay-out");
    want_precise_waits();
    try {
      for (DelayQueue::Bytes run = outgoing_.pop(); !run.empty(); run = outgoing_.pop()) {
        const std::span<const std::byte> part(run);
        inner_->write({&part, 1});
      }
      inner_->shutdown();
    } catch (...) {
      // Not shut down: bytes that the peer sent before may still be delayed on their way to us.
      MutexLock lock(mutex_);
      write_error_ = std::current_exception();
    }
    outgoing_.cut();
    MutexLock lock(mutex_);
    sender_done_ = true;
    changed_.notify_all();
  }

  void run_receiver() noexcept {
    begin_worker_thread("tr-delay-in");
    DelayQueue::Bytes buffer(kRunSize);
    std::exception_ptr error;
    try {
      for (;;) {
        const size_t got = inner_->read_some(buffer);
        if (got == 0 || !incoming_.push(std::span(buffer).first(got)))
          break;
      }
    } catch (...) {
      error = std::current_exception();
    }
    incoming_.finish(error);
  }

  void wait_for_sender(Clock::time_point deadline) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!sender_done_ && Clock::now() < deadline)
      changed_.wait_until(mutex_, deadline);
  }

  const std::unique_ptr<Stream> inner_;
  DelayQueue outgoing_;
  DelayQueue incoming_;
  std::thread sender_;
  std::thread receiver_;

  // Confined to the thread that reads.
  DelayQueue::Bytes current_;
  size_t used_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::exception_ptr write_error_ GUARDED_BY(mutex_);
  bool sender_done_ GUARDED_BY(mutex_) = false;
};

[[noreturn]] void refuse(std::string_view text) {
  throw std::invalid_argument("'" + std::string(text) +
                              "' is not a delay: write rtt_ms[,mbit_s[,jitter_ms]] with numbers "
                              "that are not negative, as in 20 or "
                              "20,1000 or 20,1000,2.");
}

double parse_number(std::string_view whole, std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value) || value < 0 || value > 1e9)
    refuse(whole);
  return value;
}

std::chrono::microseconds from_milliseconds(double value) {
  return std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::duration<double, std::milli>(value));
}

}  // namespace

std::unique_ptr<Stream> delayed(std::unique_ptr<Stream> inner, const DelaySpec& spec) {
  return std::make_unique<DelayedStream>(std::move(inner), spec);
}

DelaySpec parse_delay(std::string_view text) {
  double fields[3] = {0, 0, 0};
  std::string_view rest = text;
  for (double& field : fields) {
    const size_t comma = rest.find(',');
    field = parse_number(text, rest.substr(0, comma));
    if (comma == std::string_view::npos)
      return {from_milliseconds(fields[0]), fields[1], from_milliseconds(fields[2])};
    rest = rest.substr(comma + 1);
  }
  refuse(text);
}

}  // namespace torch_remote::transport
