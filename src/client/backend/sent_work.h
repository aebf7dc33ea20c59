#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/mutex.h"

namespace torch_remote::client {

// A receive of which the server is not told yet.
struct Receive {
  at::Tensor tensor;
  int peer = 0;
  int tag = 0;
};

// Receives that are not sent yet. One is sent when its work, or that of a later one, is waited for:
// the server waits in a receive, and would not reach a send behind it for which the other rank
// waits. Thread-safe.
class Receives {
 public:
  using Send = std::function<void(const Receive&)>;

  // `send` is called without a lock, by one thread at a time.
  explicit Receives(Send send) : send_(std::move(send)) {}

  // Gives its number, from 1 on.
  uint64_t add(Receive receive);
  // The number of the last one.
  uint64_t last() const;
  // Returns when all up to this number are sent, by this thread or another one. Raises what sending
  // raises; then that receive and those behind it are still to be sent.
  void flush(uint64_t number);

 private:
  // False: all up to the number are sent. True: this thread sends the next one, then ends its turn.
  bool take_turn(uint64_t number, Receive& next);
  void end_turn(bool is_sent);

  const Send send_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Receive> receives_ GUARDED_BY(mutex_);
  uint64_t sent_ GUARDED_BY(mutex_) = 0;  // how many were sent
  bool is_sending_ GUARDED_BY(mutex_) = false;
};

// A collective that was sent to the server. The order of calls is enough for whoever uses its
// results, so there is nothing to wait for; an error is raised as that of any call.
class SentWork : public c10d::Work {
 public:
  // `receive`: the number of the last receive that is sent before the work is done.
  SentWork(int rank, c10d::OpType type, std::vector<at::Tensor> results,
           std::shared_ptr<Receives> receives, uint64_t receive);

  bool isCompleted() override;
  bool isSuccess() const override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<at::Tensor> results_;
  const std::shared_ptr<Receives> receives_;
  const uint64_t receive_;
};

// Programs order their own files and processes by a barrier, so its wait() waits for the server.
class BarrierWork : public SentWork {
 public:
  // `token`: what the barrier has reduced.
  BarrierWork(int rank, at::Tensor token, const std::shared_ptr<Receives>& receives);

  bool isCompleted() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  const at::Tensor token_;
};

}  // namespace torch_remote::client
