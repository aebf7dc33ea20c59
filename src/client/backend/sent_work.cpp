#include "client/backend/sent_work.h"

#include "client/backend/collective_calls.h"

namespace torch_remote::client {

using c10d::OpType;
using std::chrono::milliseconds;

void Receives::add(at::Tensor tensor, int peer, int tag) {
  MutexLock lock(mutex_);
  receives_.push_back({std::move(tensor), peer, tag});
}

void Receives::flush() {
  std::deque<Receive> receives;
  {
    MutexLock lock(mutex_);
    receives.swap(receives_);
  }
  for (const Receive& receive : receives)
    collectives::recv(group_->name(), receive.tensor, receive.peer, receive.tag);
}

SentWork::SentWork(int rank, OpType type, std::vector<at::Tensor> results,
                   std::shared_ptr<Receives> receives)
    : c10d::Work(rank, type), results_(std::move(results)), receives_(std::move(receives)) {}

bool SentWork::isCompleted() {
  receives_->flush();
  return true;
}

bool SentWork::isSuccess() const {
  return true;
}

void SentWork::synchronize() {
  receives_->flush();
}

bool SentWork::wait(milliseconds /*timeout*/) {
  receives_->flush();
  return true;
}

std::vector<at::Tensor> SentWork::result() {
  return results_;
}

// Names no device: the value is there when a call that uses it runs.
c10::intrusive_ptr<c10::ivalue::Future> SentWork::getFuture() {
  receives_->flush();
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>());
  future->markCompleted(c10::IValue(results_));
  return future;
}

BarrierWork::BarrierWork(int rank, at::Tensor token, std::shared_ptr<Receives> receives)
    : SentWork(rank, OpType::BARRIER, {}, std::move(receives)), token_(std::move(token)) {}

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
