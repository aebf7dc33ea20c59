#pragma once

#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/mutex.h"
#include "client/backend/server_group.h"

namespace torch_remote::client {

// Receives that are not sent yet. One is sent when its work, or that of a later one, is waited for:
// the server waits in a receive, and would not reach a send behind it for which the other rank
// waits. Thread-safe.
class Receives {
 public:
  explicit Receives(std::shared_ptr<const ServerGroup> group) : group_(std::move(group)) {}

  void add(at::Tensor tensor, int peer, int tag);
  // Sends all.
  void flush();

 private:
  struct Receive {
    at::Tensor tensor;
    int peer;
    int tag;
  };

  const std::shared_ptr<const ServerGroup> group_;
  Mutex mutex_;
  std::deque<Receive> receives_ GUARDED_BY(mutex_);
};

// A collective that was sent to the server. The order of calls is enough for whoever uses its
// results, so there is nothing to wait for; an error is raised as that of any call.
class SentWork : public c10d::Work {
 public:
  SentWork(int rank, c10d::OpType type, std::vector<at::Tensor> results,
           std::shared_ptr<Receives> receives);

  bool isCompleted() override;
  bool isSuccess() const override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<at::Tensor> results_;
  const std::shared_ptr<Receives> receives_;
};

// Programs order their own files and processes by a barrier, so its wait() waits for the server.
class BarrierWork : public SentWork {
 public:
  // `token`: what the barrier has reduced.
  BarrierWork(int rank, at::Tensor token, std::shared_ptr<Receives> receives);

  bool isCompleted() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  const at::Tensor token_;
};

}  // namespace torch_remote::client
