#pragma once

#include <chrono>
#include <string>

#include <sys/types.h>

#include "base/fd.h"
#include "transport/address.h"

namespace torch_remote::server {

// A listening socket whose accept() never blocks: a client may hang up before it is accepted.
// Confined to one thread.
class ListeningSocket {
 public:
  using Clock = std::chrono::steady_clock;

  // How long it is not polled when no descriptor is free. Clients wait in the kernel's queue.
  static constexpr std::chrono::milliseconds kRest{250};

  ListeningSocket() = default;  // closed
  // Throws as transport::listen_on().
  explicit ListeningSocket(const std::string& url);

  const transport::Address& address() const { return address_; }

  // For poll(): -1 while it is closed or rests, so that poll() does not return at once each time.
  int polled(Clock::time_point now) const { return now < rest_until_ ? -1 : socket_.get(); }

  // Empty: the client hung up, or no descriptor is free: then it rests.
  Fd accept(Clock::time_point now);

  bool rests(Clock::time_point now) const { return now < rest_until_; }

  void end_rest() { rest_until_ = {}; }

  // For a child of fork().
  void close() { socket_.reset(); }

  // Removes the file of a Unix socket, unless another socket has its path now.
  void remove() const;

 private:
  transport::Address address_;
  Fd socket_;
  dev_t device_ = 0;  // of the Unix socket's file, like the inode
  ino_t inode_ = 0;
  Clock::time_point rest_until_{};
};

// The last numbers are kept for what starts the process of a session. The kernel gives the lowest
// number that is free: this one is among the last where all others are taken.
bool is_among_last(const Fd& newest);
// The same with the lowest number that is free.
Fd renumbered(Fd descriptor);

}  // namespace torch_remote::server
