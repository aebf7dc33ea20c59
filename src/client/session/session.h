#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "client/capture/capture.h"
#include "client/link/link.h"
#include "client/process/errors.h"
#include "client/session/call_window.h"
#include "client/session/faults.h"
#include "client/session/message_order.h"
#include "client/session/requests.h"
#include "client/session/server_facts.h"
#include "client/session/warnings.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace torch_remote::client {

// The storages that a call or read uses, to compare them with the results of a failed call.
struct Uses {
  const Capture* capture = nullptr;
  uint64_t storage = 0;

  // The call itself is what failed, not an earlier one.
  bool is_failed_call = false;

  bool any_of(const std::vector<uint64_t>& names) const;
};

// The bytes of an upload.
struct UploadSource {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // keeps them alive until the server has received them
  bool is_ours = false;               // our memory, not a tensor of the user
};

class Session;

// Owns sessions.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // Other sessions have been sent calls.
  virtual bool has_others(const Session* session) const = 0;
  // It could not be reached: its index is free again.
  virtual void drop_unreached(const Session* session) = 0;
};

// One client's state on one server: order of messages, requests, faults and link. This class has
// what needs several of them: uploads, queries, waiting, and raising failures. All else is sent
// by a Submission (client/session/submission.h). Thread-safe.
//
// The reader thread takes neither the submit lock nor the GIL.
class Session : private Link::Handler {
 public:
  // Starts to connect in the background.
  explicit Session(Endpoint endpoint, SessionOwner* owner = nullptr);

  Link& link() { return link_; }

  MessageOrder& order() { return order_; }

  Requests& requests() { return requests_; }

  Faults& faults() { return faults_; }

  ServerOperators& operators() { return operators_; }

  // Waits for the handshake. Raises when it failed.
  const wire::Welcome& welcome();
  // "remote:0 (host, cpu, session 1a2b3c4d)": for messages.
  std::string describe(uint8_t device);

  // Raises SessionLost if the session has ended.
  void check_not_lost() {
    if (link_.is_lost()) [[unlikely]]
      raise_lost();
  }

  // A bulk upload: BEGIN is first in a frame, the bytes go on a lane. Waits while very many bytes
  // of uploads are on their way; calls do not wait for them.
  void upload(const wire::Begin& begin, CallSite site, UploadSource source,
              std::function<void(bool)> on_acknowledged);

  // --- waiting: client/session/session_waits.cpp, client/session/session_credit.cpp

  // Before every call: raises the failure that has stopped this thread, if there is one, and waits
  // for credit. If the thread is stopped meanwhile, raises that failure.
  void begin_call(const Uses& uses = {});

  RequestPtr make_request(std::span<std::byte> destination, std::shared_ptr<const void> owner) {
    return requests_.make(destination, std::move(owner), order_.submitted());
  }

  // Flushes and waits, for at most `time`; counts a sync. The request tells whether it failed.
  // False: it is not done.
  bool wait_quietly(const RequestPtr& request, const char* what,
                    std::optional<std::chrono::milliseconds> time = std::nullopt);
  // As wait_quietly(), but raises the server's error, SessionLost, or an interrupt.
  void wait(const RequestPtr& request, const char* what);
  // Sends a query and waits. Returns the answer's body. `write_fields` runs under the submit lock.
  std::vector<std::byte> query(wire::QueryKind kind, const std::string& what,
                               const std::function<void(wire::Writer&)>& write_fields = nullptr);

  // --- failures: client/session/session_faults.cpp

  // Raises the failure that has stopped this thread, if it is known, and lets the thread go on.
  void raise_own_failure(const Uses& uses = {}) {
    if (faults_.has_any()) [[unlikely]]
      raise_known_failure(uses);
  }

  // Raises a failed request's error as RemoteError with operator, device, host, the user's line and
  // the server's words. If it has stopped this thread, the thread goes on from here.
  [[noreturn]] void raise_failed(const Request& request, const Capture* used = nullptr);
  // Everything sent is done on the server, pending downloads are here, and no upload reads the
  // user's memory any more. Raises the first failure that was not reported.
  void synchronize(const Uses& uses = {});
  // Drops the calls that have not begun, and waits for those that have. What this thread's would
  // have made is missing; another thread gets its error at its next call.
  void cancel();
  // Before stop(): the failures that were never raised, as a text. Waits for everything to be done,
  // for at most `patience`, unless the session is lost or the user presses Ctrl-C.
  std::string describe_unreported(std::chrono::milliseconds patience);

  // After link().stop(): frees everything but the object itself, to which tensors may still point.
  // False: its threads have not ended yet.
  bool release();

 private:
  using Clock = std::chrono::steady_clock;

  friend KnownUploads& known_uploads(Session& session);
  friend void finish_uploads(Session& session, uint64_t before);
  friend uint64_t calls_done(Session& session);
  friend void show_warnings(Session& session);
  friend void show_all_warnings(Session& session);
  friend bool print_warnings(Session& session);

  const std::string& url() const { return link_.endpoint().url; }

  // For a session that has ended: raises why.
  [[noreturn]] void raise_lost();
  // The device failed at one of the calls error.first … error.call and cannot be used any more.
  void lose_device(const wire::Error& error);
  void on_error(wire::Reader& reader);
  void on_warning(wire::Reader& reader);
  void on_reply(const wire::Reply& reply);
  void on_call_progress(uint64_t call);
  bool has_credit();
  bool has_upload_credit();
  // As begin_call(), for an upload.
  void begin_upload();
  void wait_until_credit(bool (Session::*has)());

  enum class Waiter { kUser, kExit };
  // Calls `ready` under the lock of the requests. Raises if the session is lost first, or the user
  // interrupts. After a second it prints what it waits for, to a terminal; at exit, and while the
  // server does not answer the first handshake, to any stderr.
  void wait_until(const std::function<bool()>& ready, const char* what,
                  Waiter waiter = Waiter::kUser);
  // False: the session is lost, the user has interrupted, or it is too late.
  bool wait_at_exit(const std::function<bool()>& ready, const char* what, Clock::time_point end);
  // Raises KeyboardInterrupt, which says what was waited for.
  void look_for_interrupt(const char* what, uint64_t all);
  // For a QUERY kCall whose wait was interrupted: frees what the answer names, when it is here.
  void abandon(const RequestPtr& request);
  uint64_t calls_left();
  std::string describe_oldest_call();
  // `all`: how many calls were left when the wait began.
  std::string describe_wait(const char* what, uint64_t all);
  std::string describe_unconfirmed();
  std::string describe_known_failures();
  void say_wait(const char* what, uint64_t all, Clock::duration waited);
  void say_exit_wait();

  RequestPtr find_failed_download();
  void note_failure(const wire::Error& error);
  void free_results(const Request& request);
  void raise_known_failure(const Uses& uses);
  [[noreturn]] void raise_failure(const Failure& failure, const Uses& uses);
  // All of raise_failure() but raising: the thread goes on. How many of its calls were discarded.
  uint64_t go_on_after(const Failure& failure);
  std::optional<CallSite> site_of(const wire::Error& error);
  // Where the graph was replayed whose call has failed; empty if it was no graph's.
  std::string describe_run(const wire::Error& error);
  // `device` is used if the call is unknown.
  std::string describe(const wire::Error& error, std::optional<CallSite> site, uint8_t device);

  // Link::Handler
  std::vector<std::byte> take_messages(uint32_t& calls) override;
  void on_messages(std::vector<std::byte> payload) override;
  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override;
  void on_bulk(uint64_t lane, uint64_t length, bool last) override;
  void on_progress() override;
  void on_change() noexcept override;

  SessionOwner* const owner_;
  Counters counters_;
  ServerOperators operators_;
  Faults faults_;
  Requests requests_;
  MessageOrder order_;
  CallWindow call_window_;
  std::atomic<uint64_t> progress_{0};  // the last call that PROGRESS says is done
  std::atomic<int> credit_waiters_{0};
  // Bytes of uploads that the server has not received completely, and what of them is our memory.
  std::atomic<uint64_t> bulk_bytes_{0};
  std::atomic<uint64_t> our_bulk_bytes_{0};
  // When a long wait was last printed.
  std::atomic<Clock::time_point> last_notice_{};
  KnownUploads known_uploads_;
  Warnings warnings_;
  Link link_;
};

// The last call known to be done. The server confirms a frame at once, after its failures.
uint64_t calls_done(Session& session);

wire::DeviceKind device_kind(Session& session, uint8_t device);
wire::Counters server_counters(Session& session);
wire::Context server_context(Session& session);
// What the server has of earlier sessions' uploads.
KnownUploads& known_uploads(Session& session);
// Waits until the server has received the uploads whose requests have smaller ids, and the
// connection reads their sources no more. SentSources::free_done() then frees them.
void finish_uploads(Session& session, uint64_t before);

// Gives Python's `warnings` what kernels have warned of in calls of this thread and of threads that
// have ended. Raises none, so that a wait does all of its work: one that a filter makes an error is
// raised by PyTorch at the end of the operation.
void show_warnings(Session& session);
// The same for all threads.
void show_all_warnings(Session& session);
// The same at the session's end, where none is raised. True: a filter has made one an error.
bool print_warnings(Session& session);

// The call may use a storage that is missing, because the call that makes it may have been
// discarded. Only the server knows.
bool may_be_missing(Faults& faults, const Capture& capture);
// Call this when the server has run the call: notes that no storage that it uses is missing.
void note_not_missing(const Capture& capture);
// This thread's call number `since` failed, and the tensor's storage is missing because of that:
// the failed call makes it, or a later call of this thread, which was discarded.
bool is_missing(Session& session, const at::Tensor& tensor, uint64_t since);

// For an answer that no correct server gives. Ends the session, as the reader thread does when it
// finds invalid bytes, and raises SessionLost.
[[noreturn]] void refuse_answer(Session& session, const ProtocolError& error);

// Decodes the body of an answer that only the thread which asked can check. `decode` takes a
// wire::Reader.
template <typename Decode>
auto decode_answer(Session& session, const std::vector<std::byte>& body, Decode&& decode) {
  try {
    wire::Reader reader(body);
    auto answer = decode(reader);
    reader.finish();
    return answer;
  } catch (const ProtocolError& error) {
    refuse_answer(session, error);
  }
}

}  // namespace torch_remote::client
