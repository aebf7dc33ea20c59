#include "transport/delay_line.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/mutex.h"
#include "base/platform.h"
#include "transport/delay_queue.h"

namespace torch_remote::transport {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRunSize = 64 << 10;
// The destructor waits this much longer than the delay for written bytes to be sent.
constexpr std::chrono::milliseconds kDrainGrace{200};

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

}  // namespace

std::unique_ptr<Stream> delayed(std::unique_ptr<Stream> inner, const DelaySpec& spec) {
  return std::make_unique<DelayedStream>(std::move(inner), spec);
}

}  // namespace torch_remote::transport
