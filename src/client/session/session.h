#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/session/call_window.h"
#include "client/session/counters.h"
#include "client/session/errors.h"
#include "client/session/faults.h"
#include "client/session/link.h"
#include "client/session/requests.h"
#include "client/session/server_operators.h"
#include "client/session/stream.h"
#include "wire/messages.h"

namespace torch_remote::client {

// The storages that a call or read uses, to compare them with the results of a failed call.
struct Uses {
  const Capture* capture = nullptr;
  uint64_t storage = 0;

  bool any_of(const std::vector<uint64_t>& names) const;
};

// Owns sessions and gives devices their indices.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // The k of remote:k for a server's device.
  virtual c10::DeviceIndex index_of(const Session* session, uint8_t device) const = 0;
  // Other sessions have been sent calls.
  virtual bool has_others(const Session* session) const = 0;
  // It could not be reached: its index is free again.
  virtual void drop_unreached(const Session* session) = 0;
};

// One client's state on one server: call stream, requests, faults and link. This class has what
// needs several of them: submitting, waiting, and telling of failures. Thread-safe.
//
// The reader thread takes neither the submit lock nor the GIL.
class Session : private Link::Traffic, private ServerFacts {
 public:
  // Starts to connect in the background.
  explicit Session(Endpoint endpoint, SessionOwner* owner = nullptr);

  Link& link() { return link_; }

  CallStream& stream() { return stream_; }

  Requests& requests() { return requests_; }

  Faults& faults() { return faults_; }

  bool is_lost() const { return link_.is_lost(); }

  bool has_sent_calls() const { return stream_.submitted() != 0; }

  // Waits for the handshake. Raises when it failed.
  const wire::Welcome& welcome() override;
  // "remote:0 (host, cpu, session 1a2b3c4d)": for messages.
  std::string describe(uint8_t device) override;

  // How the server's operator differs: ServerOperators::match().
  const OperatorMatch* match(const OperatorInfo& info) { return operators_.match(*this, info); }

  // Appends messages in one critical section: CallStream::append(). Raises SessionLost if the
  // session has ended. Call wait_for_credit() first.
  template <typename Append>
  void submit(uint32_t calls, Append&& append) {
    if (!try_submit(calls, std::forward<Append>(append)))
      raise_lost();
  }

  // As submit(), for callers that may not raise: false if the session has ended.
  template <typename Append>
  bool try_submit(uint32_t calls, Append&& append) {
    if (is_lost())
      return false;
    stream_.append(calls, std::forward<Append>(append));
    link_.flush_soon();
    return true;
  }

  // A bulk upload: BEGIN is first in a frame, the bytes go on a lane.
  void upload(const wire::Begin& begin, CallSite site, std::span<const std::byte> bytes,
              std::shared_ptr<const void> owner, std::function<void(bool)> on_acknowledged);
  // Deleters: any thread, no lock, no I/O.
  void queue_free(StorageRecord* record) noexcept;

  // --- waiting: client/session/session_waits.cpp

  // Before every call: raises this thread's failure, if there is one, and waits for credit.
  void wait_for_credit(const Uses& uses = {});

  RequestPtr make_request(std::span<std::byte> destination, std::shared_ptr<const void> owner) {
    return requests_.make(destination, std::move(owner), stream_.submitted());
  }

  // For a QUERY kCall whose wait was interrupted: frees what the answer names, when it is here.
  void abandon(const RequestPtr& request);
  // Flushes and waits; counts a sync. The request tells whether it failed.
  void wait_quietly(const RequestPtr& request, const char* what);
  // As wait_quietly(), but raises the server's error, SessionLost, or an interrupt.
  void wait(const RequestPtr& request, const char* what);
  // As wait_quietly(), for at most `time`. False: the request is not done.
  bool wait_within(const RequestPtr& request, const char* what, std::chrono::milliseconds time);
  // Sends a query and waits. Returns the answer's body.
  std::vector<std::byte> query(
      wire::QueryKind kind, const std::string& what,
      const std::function<void(wire::Writer&)>& write_body = nullptr) override;
  // The last call known to be done. The server confirms a frame at once, after its failures.
  uint64_t calls_done() const;

  // --- telling: client/session/session_faults.cpp

  // Raises the failure that has stopped this thread, if it is known, and lets the thread go on.
  void tell_failure(const Uses& uses = {}) {
    if (faults_.has_any()) [[unlikely]]
      tell_known_failure(uses);
  }

  // Raises a failed request's error as RemoteError with operator, device, host, the user's line and
  // the server's words. If it has stopped this thread, the thread goes on from here.
  [[noreturn]] void raise_failed(const Request& request, const Capture* used = nullptr);
  // Everything sent is done on the server, and pending downloads are here. Raises the first failure
  // that the user has not been told of.
  void synchronize();
  // For the end of a `with` block: synchronize(), unless nothing was sent or the loss was raised.
  void finish();
  // Everything sent is done. False: this thread is stopped.
  bool finish_calls();
  // Before stop(): the failures that were never raised, as a text. `waits`: after everything is
  // done, unless the session is lost or the user presses Ctrl-C.
  std::string report_untold(bool waits);

  // Flushes for at most `patience`, then closes. Later use raises SessionLost.
  void stop(std::chrono::milliseconds patience, const std::string& reason);
  // After stop(): frees everything but the object itself, to which tensors may still point. False:
  // its threads have not ended yet.
  bool release();

 private:
  const std::string& url() const { return link_.endpoint().url; }

  bool has_our_torch() const override { return link_.endpoint().has_our_torch; }

  [[noreturn]] void raise_lost();
  // The device failed at one of the calls first … call and cannot be used any more.
  void lose_device(const wire::Error& error);
  void on_error(wire::Reader& reader);
  void on_reply(const wire::Reply& reply);
  bool has_credit();

  enum class Waiter { kUser, kExit };
  // Calls `ready` under the lock of the requests. Raises if the session is lost first, or the user
  // interrupts. After a second it prints what it waits for, to a terminal; at exit to any stderr.
  void wait_until(const std::function<bool()>& ready, const char* what,
                  Waiter waiter = Waiter::kUser);
  void look_for_interrupt();
  // The server has done the calls up to this number.
  void confirm(uint64_t call);
  uint64_t calls_left() const;
  std::string describe_oldest_call();
  std::string describe_wait(const char* what);
  std::string describe_unconfirmed();
  std::string describe_known_failures();
  void say_wait(const char* what);
  void say_exit_wait();

  RequestPtr find_failed_download();
  void note_failure(const wire::Error& error);
  void free_results(const Request& request);
  void tell_known_failure(const Uses& uses);
  [[noreturn]] void tell(const Failure& failure, const Uses& uses);
  // `device` is used if the call is unknown.
  std::string describe(const wire::Error& error, std::optional<CallSite> site, uint8_t device);

  // Link::Traffic
  std::vector<std::byte> take_messages(uint32_t& calls) override;
  void on_messages(std::span<const std::byte> payload) override;
  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override;
  void on_bulk(uint64_t lane, uint64_t length, bool last) override;
  void on_progress() override;
  void on_change() noexcept override;

  SessionOwner* const owner_;
  Counters counters_;
  ServerOperators operators_;
  Faults faults_;
  Requests requests_;
  CallStream stream_;
  CallWindow call_window_;
  std::atomic<int> credit_waiters_{0};
  std::atomic<uint64_t> bulk_bytes_{0};    // of uploads that the server has not received completely
  std::atomic<uint64_t> confirmed_{0};     // calls up to this number are done: an answer said so
  std::atomic<bool> is_loss_told_{false};  // the reason of the loss was raised
  // When a long wait was last printed.
  std::atomic<std::chrono::steady_clock::time_point> last_notice_{};

  Link link_;  // last, because its threads use the other members
};

wire::DeviceKind device_kind(Session& session, uint8_t device);
wire::Counters server_counters(Session& session);
wire::Context server_context(Session& session);

// What the call uses may be missing: a discarded call was to make it. Only the server knows.
bool may_be_missing(Faults& faults, const Capture& capture);
// It is not missing, for the server has used it.
void note_not_missing(const Capture& capture);
// A call that this thread made after `since` was to make it, and was discarded.
bool is_missing(Session& session, const at::Tensor& tensor, uint64_t since);

}  // namespace torch_remote::client
