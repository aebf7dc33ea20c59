#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/mutex.h"
#include "wire/messages.h"

namespace torch_remote::client {

// A descriptor that is readable from set() until clear(), for an event loop that waits for
// requests. Thread-safe; set() never blocks.
//
// The loop calls clear() and then looks which requests are done: one that became done before is
// seen then, one that becomes done later makes the descriptor readable again.
class DoneSignal {
 public:
  DoneSignal();

  int descriptor() const { return ends_.first.get(); }

  void set() noexcept;
  void clear() noexcept;

 private:
  const std::pair<Fd, Fd> ends_;  // a pipe that holds at most one byte
  std::atomic<bool> is_set_ = false;
};

// What a thread waits for: the answer to a READ or QUERY, or that an upload has arrived.
struct Request {
  uint64_t id = 0;
  uint8_t device = 0;                // the server's number of it, for messages
  uint64_t call = 0;                 // the call whose outcome it is
  uint64_t storage = 0;              // of a READ: the storage's name
  uint64_t first_name = 0;           // of a QUERY kCall: the name of its first fresh output
  uint64_t names = 0;                // of a QUERY kCall: how many fresh outputs it may have
  uint64_t after = 0;                // the last call before it, which is done when the answer comes
  uint64_t upload_bytes = 0;         // of an upload: how many
  std::span<std::byte> destination;  // of a READ: for its bytes
  std::shared_ptr<const void> owner;  // keeps the destination alive
  std::atomic<bool> done = false;     // set last, under the lock of Requests
  // Under the lock of Requests until done:
  bool failed = false;
  bool is_of_this_call = false;  // failed for lack of memory, and no earlier call is the cause
  bool is_abandoned = false;     // nobody waits: what still comes is dropped
  uint64_t received = 0;         // bulk bytes so far, which come in order
  std::vector<std::byte> body;
  std::vector<wire::Result> results;  // in place of the body, of a QUERY kCall
  wire::Error error;
  std::vector<std::shared_ptr<DoneSignal>> signals;  // to set when it is done
};

using RequestPtr = std::shared_ptr<Request>;

// The unanswered requests of a session, and the threads that wait for answers or for other changes
// of the session. Thread-safe.
class Requests {
 public:
  RequestPtr make(std::span<std::byte> destination, std::shared_ptr<const void> owner,
                  uint64_t after);
  // Of an upload of so many bytes.
  RequestPtr make_upload(uint64_t bytes, uint64_t after);
  // The uploads with a smaller id that the server has not received.
  std::vector<RequestPtr> uploads_before(uint64_t id);

  // The id of the next request; ids grow.
  uint64_t next_id() const { return next_.load(std::memory_order_relaxed); }

  // The calls up to this number are done: an answer said so.
  uint64_t confirmed() const { return confirmed_.load(std::memory_order_relaxed); }

  // For a request that was not sent.
  void forget(const Request& request);
  // For one whose answer nobody takes any more. True: it is here already.
  bool abandon_answer(Request& request);
  // For a request whose destination the caller wants back: what still arrives is dropped. False:
  // the reader thread is receiving a part of it, and goes on writing to the destination.
  bool abandon(const Request& request);
  // For a session that has ended.
  void clear();

  // Reader thread. Throw ProtocolError for an answer without a request.
  RequestPtr reply(const wire::Reply& reply);  // the request that is answered
  void fail(uint64_t id, wire::Error error);
  std::span<std::byte> bulk_target(uint64_t id, uint64_t offset, uint64_t length);
  void add_bulk(uint64_t id, uint64_t length, bool last);
  // All bytes of an upload have arrived, or never will.
  void complete_upload(uint64_t id);

  // Sets the signal once the request is done, or signal_all() is called; now if it is done.
  void signal_when_done(Request& request, std::shared_ptr<DoneSignal> signal);
  // For a session that is lost.
  void signal_all();

  // Waits for `ready`, called under the lock, for at most `time`. Returns its last result.
  bool wait_for(const std::function<bool()>& ready, std::chrono::milliseconds time);
  // After a change that a thread may wait for.
  void wake();

 private:
  RequestPtr take_answered(uint64_t id) REQUIRES(mutex_);
  void finish(Request& request) REQUIRES(mutex_);

  std::vector<std::byte> dropped_;  // reader thread: for bytes of abandoned requests
  std::atomic<uint64_t> next_{1};
  std::atomic<uint64_t> confirmed_{0};  // written under mutex_
  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<uint64_t, RequestPtr> open_ GUARDED_BY(mutex_);
  uint64_t filling_ GUARDED_BY(mutex_) = 0;  // the request to whose destination the reader writes
};

}  // namespace torch_remote::client
