#include "client/backend/sent_work.h"

#include "client/process/errors.h"

namespace torch_remote::client {

using c10d::OpType;
using std::chrono::milliseconds;

// How often a thread that waits for another one looks for Ctrl-C.
constexpr milliseconds kInterruptInterval(50);

uint64_t Receives::add(Receive receive) {
  MutexLock lock(mutex_);
  receives_.push_back(std::move(receive));
  return sent_ + receives_.size();
}

uint64_t Receives::last() const {
  MutexLock lock(mutex_);
  return sent_ + receives_.size();
}

bool Receives::take_turn(uint64_t number, Receive& next) {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (sent_ >= number)
        return false;
      if (!is_sending_) {
        is_sending_ = true;
        next = receives_.front();
        return true;
      }
      changed_.wait_for(mutex_, kInterruptInterval);
    }
    if (python_hooks.check_signals != nullptr)
      python_hooks.check_signals();
  }
}

void Receives::end_turn(bool is_sent) {
  Receive done;  // dropped without the lock
  {
    MutexLock lock(mutex_);
    is_sending_ = false;
    if (is_sent) {
      done = std::move(receives_.front());
      receives_.pop_front();
      ++sent_;
    }
  }
  changed_.notify_all();
}

void Receives::flush(uint64_t number) {
  const WithoutGil without_gil;  // the thread that sends may need it
  Receive next;
  while (take_turn(number, next)) {
    try {
      send_(next);
    } catch (...) {
      end_turn(false);
      throw;
    }
    end_turn(true);
  }
}

SentWork::SentWork(int rank, OpType type, std::vector<at::Tensor> results,
                   std::shared_ptr<Receives> receives, uint64_t receive)
    : c10d::Work(rank, type),
      results_(std::move(results)),
      receives_(std::move(receives)),
      receive_(receive) {}

bool SentWork::isCompleted() {
  receives_->flush(receive_);
  return true;
}

bool SentWork::isSuccess() const {
  return true;
}

void SentWork::synchronize() {
  receives_->flush(receive_);
}

bool SentWork::wait(milliseconds /*timeout*/) {
  receives_->flush(receive_);
  return true;
}

std::vector<at::Tensor> SentWork::result() {
  return results_;
}

// Names no device: the value is there when a call that uses it runs.
c10::intrusive_ptr<c10::ivalue::Future> SentWork::getFuture() {
  receives_->flush(receive_);
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>());
  future->markCompleted(c10::IValue(results_));
  return future;
}

BarrierWork::BarrierWork(int rank, at::Tensor token, const std::shared_ptr<Receives>& receives)
    : SentWork(rank, OpType::BARRIER, {}, receives, receives->last()), token_(std::move(token)) {}

bool BarrierWork::isCompleted() {
  return wait(milliseconds(0));
}

void BarrierWork::synchronize() {
  wait(milliseconds(0));
}

bool BarrierWork::wait(milliseconds timeout) {
  SentWork::wait(timeout);
  token_.item();
  return true;
}

}  // namespace torch_remote::client
