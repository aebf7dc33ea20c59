#pragma once

#include <chrono>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

// Not included here: it has all of ATen.
namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace torch_remote::server {

// What an engine of collectives is made of: one rank of a process group.
struct EngineOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
  std::string address;  // an IP address of this machine: the engine listens there
  c10::Device device{c10::kCPU};
};

// Whether the server was built with the engine of CPU servers.
bool has_gloo() noexcept;

// Connects to the other ranks, which takes as long as they do, and at most the timeout. Throws.
// Both throw NotImplementedError where the server was built without the engine.
c10::intrusive_ptr<c10d::Backend> make_gloo(const EngineOptions& options);
c10::intrusive_ptr<c10d::Backend> make_nccl(const EngineOptions& options);

}  // namespace torch_remote::server
