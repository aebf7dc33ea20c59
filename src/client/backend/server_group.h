#pragma once

#include <chrono>
#include <cstdint>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "client/machines/machines.h"

namespace torch_remote::client {

struct GroupOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};  // for the opening, and for each collective
};

// One rank of a process group of servers: Note [Process groups] in wire/group.h. Immutable.
class ServerGroup {
 public:
  // Opens it. Waits until all ranks have done the same; they share `store`. Raises after the
  // timeout.
  ServerGroup(DevicePlace place, c10d::Store& store, const GroupOptions& group);
  // Closes it, and waits until the other ranks have received what was sent to them. Never raises.
  ~ServerGroup();
  ServerGroup(const ServerGroup&) = delete;
  ServerGroup& operator=(const ServerGroup&) = delete;

  int64_t name() const { return static_cast<int64_t>(name_); }

  Session& session() const { return session_; }

 private:
  void open(c10d::Store& store, const GroupOptions& group, uint8_t device);
  void close() noexcept;

  Session& session_;
  const uint64_t name_;
};

}  // namespace torch_remote::client
