#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "wire/messages.h"

namespace torch_remote::client {

// What a caller waits for: the answer to one READ or QUERY, or that an upload has arrived.
struct Request {
  uint64_t id = 0;
  uint8_t device = 0;                 // the server's number for it: for messages
  uint64_t call = 0;                  // the number of the call whose outcome it is
  uint64_t storage = 0;               // of a READ: its name
  uint64_t after = 0;                 // a call before it: the answer says that one is done
  std::span<std::byte> destination;   // of a READ: where its bytes go
  std::shared_ptr<const void> owner;  // keeps the destination
  std::atomic<bool> done = false;     // set last, under the lock of Requests
  // Under the lock of Requests until done:
  bool failed = false;
  uint64_t received = 0;  // bulk bytes so far: they come in order
  std::vector<std::byte> body;
  wire::Error error;
};

using RequestPtr = std::shared_ptr<Request>;

// The requests of a session that the server has not answered yet, and the threads that wait: for
// answers, or for anything else that the session's threads bring about. Thread-safe.
class Requests {
 public:
  RequestPtr make(std::span<std::byte> destination, std::shared_ptr<const void> owner,
                  uint64_t after);

  // Of the next one that is made: they grow.
  uint64_t next_id() const { return next_.load(std::memory_order_relaxed); }

  // One that was not sent after all.
  void forget(const Request& request);
  // Of a session that is over.
  void clear();

  // Reader thread. Give the request that is answered; null: there is more to come. Throw ProtocolError
  // for what nobody has asked for.
  RequestPtr reply(const wire::Reply& reply);
  RequestPtr fail(uint64_t id, wire::Error error);
  std::span<std::byte> bulk_target(uint64_t id, uint64_t offset, uint64_t length);
  RequestPtr add_bulk(uint64_t id, uint64_t length, bool last);
  // An upload's bytes have all arrived, or never will.
  void complete_upload(uint64_t id);

  // Waits for `ready`, which is asked under the lock, for as long as `time`. Gives what it said last.
  bool wait_for(const std::function<bool()>& ready, std::chrono::milliseconds time);
  // After a change that somebody may wait for.
  void wake();

 private:
  RequestPtr take(uint64_t id) REQUIRES(mutex_);

  std::atomic<uint64_t> next_{1};
  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<uint64_t, RequestPtr> open_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
