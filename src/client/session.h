#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "client/call_window.h"
#include "client/context.h"
#include "client/counters.h"
#include "client/errors.h"
#include "client/faults.h"
#include "client/handshake.h"
#include "client/lines.h"
#include "client/server_operators.h"
#include "client/signature_table.h"
#include "client/threads.h"
#include "marshal/encode.h"
#include "transport/connection.h"
#include "transport/stream.h"
#include "wire/handshake.h"
#include "wire/messages.h"

namespace torch_remote::client {

using marshal::StorageRecord;

// A frame is cut when it has this many bytes.
constexpr size_t kFrameTarget = 64 << 10;
constexpr uint64_t kFreedAtOnce = 1 << 20;

// What the caller waits for: the answer to one READ or QUERY.
struct Request {
  uint64_t id = 0;
  uint8_t device = 0;                 // the server's number for it: for messages
  uint64_t call = 0;                  // the number of the call whose outcome it is
  uint64_t storage = 0;               // of a READ: its name
  uint64_t after = 0;                 // a call before it: the answer says that one is done
  std::span<std::byte> destination;   // of a READ: where its bytes go
  std::shared_ptr<const void> owner;  // keeps the destination
  std::atomic<bool> done = false;     // set last, under Session::replies_mutex_
  // Under Session::replies_mutex_ until done:
  bool failed = false;
  uint64_t received = 0;  // bulk bytes so far: they come in order
  std::vector<std::byte> body;
  wire::Error error;
};

// The storages that a call or read uses, to be compared with those that a failed call has not made.
struct Uses {
  const marshal::Capture* capture = nullptr;
  uint64_t storage = 0;

  bool any_of(const std::vector<uint64_t>& names) const;
};

// One client's state on one server. Thread-safe.
//
// Calls are appended to a buffer under the submit lock, in one total order; the connection's writer thread
// takes the buffer away as frames. The reader thread takes neither the submit lock nor the GIL.
class Session : public transport::Connection::Handler {
 public:
  using Open = std::function<std::unique_ptr<transport::Stream>()>;
  using Redial = std::function<std::unique_ptr<transport::Stream>(
      std::chrono::steady_clock::time_point deadline)>;

  // How to get a stream to the server, and what to do when the session has been stopped (an embedded server is
  // waited for, or killed).
  struct Way {
    Open open;
    std::function<void()> clean_up;
    Redial redial = nullptr;  // the same once more, after the connection was lost; none: it cannot
    // Why the server's process is gone, where this side can know; else empty.
    std::function<std::string()> post_mortem = nullptr;
    // The server listens already: it answers soon, and another connection may get through where one
    // was cut in the first handshake.
    bool has_listener = false;
  };

  // Starts to connect in the background. `token` may be empty.
  Session(std::string url, Way way, std::string token);

  const std::string& url() const { return url_; }

  // An embedded server was built with this extension.
  bool has_our_torch() const { return url_ == "local"; }

  ServerOperators& operators() { return operators_; }

  // Waits for the handshake. Raises when it failed.
  const wire::Welcome& welcome();
  // What is known of the server's kind of device without waiting, else waits.
  wire::DeviceKind device_kind(uint8_t device);
  // "remote:0 (host, cpu, session 1a2b3c4d)": for messages.
  std::string describe(uint8_t device);

  // Appends messages in one critical section: `append(writer, names, signatures)`. `calls` is how many
  // operator calls that is. Raises SessionLost when the session has ended. Callers wait_for_credit() before.
  // `append` returns whether it has appended anything.
  template <typename Append>
  void submit(uint32_t calls, Append&& append) {
    if (!try_submit(calls, std::forward<Append>(append)))
      raise_lost();
  }

  // The same, for callers that may not raise: false when the session has ended.
  template <typename Append>
  bool try_submit(uint32_t calls, Append&& append);

  SignatureTable& signatures() REQUIRES(submit_mutex_) { return signatures_; }

  template <typename Use>
  auto with_signatures(Use&& use) {
    MutexLock lock(submit_mutex_);
    return use(signatures_);
  }

  // Tells the server what of the context has changed since it was last told.
  void mirror_context(wire::Writer& writer) NO_THREAD_SAFETY_ANALYSIS {
    context_.append_changes(writer);
  }

  // What follows is a CALL, QUERY kCall, BEGIN or RESIZE, made there. Its number.
  uint64_t number_call(CallSite site) NO_THREAD_SAFETY_ANALYSIS {
    site.thread = static_cast<uint8_t>(stream_thread_);
    lines_.put(++call_number_, site);
    ++calls_;
    return call_number_;
  }

  // The number of the last call. Within submit().
  uint64_t last_call() const NO_THREAD_SAFETY_ANALYSIS { return call_number_; }

  // Appends the RESIZE by which the server knows a storage, unless it knows it already (false).
  // Within submit().
  bool announce(wire::Writer& writer, StorageRecord& record, CallSite site);

  // Puts a signature whose outputs the server has told into the table, in place of the one without.
  void remember(SignaturePtr known);

  // Starts a frame of its own, so that the server's reader finds the BEGIN of a bulk upload first in it.
  void cut_frame() REQUIRES(submit_mutex_);

  // A bulk upload: BEGIN first in a frame of its own, the bytes on a lane of their own.
  void upload(const wire::Begin& begin, CallSite site, std::span<const std::byte> bytes,
              std::shared_ptr<const void> owner, std::function<void(bool)> on_acknowledged);

  std::shared_ptr<Request> make_request(std::span<std::byte> destination,
                                        std::shared_ptr<const void> owner);
  // Flushes and waits; counts a sync. The request says whether it failed.
  void wait_quietly(const std::shared_ptr<Request>& request, const char* what);
  // The same. Raises what the server answered, SessionLost, or an interrupt.
  void wait(const std::shared_ptr<Request>& request, const char* what);

  // Raises a failed request's error as RemoteError: operator, device, host, the user's line, what the
  // server said. If it has stopped this thread, the thread goes on from here.
  [[noreturn]] void raise_failed(const Request& request, const marshal::Capture* used = nullptr);

  // Raises the failure that has stopped this thread, if it is known by now, and lets the thread go on.
  void tell_failure(const Uses& uses = {}) {
    if (faults_.has_any()) [[unlikely]]
      tell_known_failure(uses);
  }

  // What the call uses may be missing: a discarded call was to make it. Only the server knows.
  bool may_be_missing(const marshal::Capture& capture);
  // It is not missing, for the server has used it.
  static void note_not_missing(const marshal::Capture& capture);
  // A call that this thread made after `since` was to make it, and was discarded.
  bool is_missing(const at::Tensor& tensor, uint64_t since);
  // A request that was not sent after all.
  void forget(const Request& request);
  // An upload's bytes have all arrived, or never will.
  void complete_upload(uint64_t request);

  uint64_t new_name() { return next_name_.fetch_add(1, std::memory_order_relaxed); }

  uint64_t new_names(uint64_t count) {
    return next_name_.fetch_add(count, std::memory_order_relaxed);
  }

  uint64_t new_generator_name() { return next_generator_.fetch_add(1, std::memory_order_relaxed); }

  // Deleters: any thread, no lock, no I/O.
  void queue_free(StorageRecord* record) noexcept;

  // Before every call: tells this thread of its failure, if there is one, and waits for credit.
  void wait_for_credit(const Uses& uses = {});
  // Everything sent is done on the server, and pending downloads are here. Raises the first failure
  // that the user has not been told of.
  void synchronize();
  // Everything sent is done. False: this thread is stopped.
  bool finish_calls();
  // Before the session is stopped: waits until everything is done, as long as the session lives and
  // the user does not press Ctrl-C. What the user has not been told of, in words: failures, and calls
  // that were not waited for.
  std::string report_untold();
  // The failures among these that this side knows of without asking.
  std::string describe_known_failures();
  wire::Counters server_counters();
  // The number of the last call that is known to be done. The server confirms the calls of a frame
  // together, and their failures before that.
  uint64_t calls_done() const;
  // Of the last call, upload or resize that was submitted; 0: there was none.
  uint64_t call_number();
  wire::Context server_context();
  // Asks and waits. Gives the answer's body.
  std::vector<std::byte> query(wire::QueryKind kind, const std::string& what,
                               const std::function<void(wire::Writer&)>& write_body = nullptr);

  // Once it is stopped: gives back everything but the object itself, to which tensors may still point. False: its
  // threads have not ended yet.
  bool release();
  // Flushes for at most `patience`, then closes. Later use raises SessionLost.
  void stop(std::chrono::milliseconds patience, const std::string& reason);

  bool is_lost() const { return lost_.load(std::memory_order_acquire); }

  // "connecting", "open", "resuming", "lost", or "stopped" after a stop() that came before anything was lost.
  std::string state();
  // In a forked child: nothing may be touched any more.
  void abandon() noexcept;

  Counters& counters() { return counters_; }

  uint64_t bytes_received() const;
  uint64_t frames() const;

 private:
  struct Segment {
    std::vector<std::byte> payload;
    uint32_t calls;
  };

  void open(Open open, std::string token);
  void fail(std::exception_ptr cause) noexcept;
  void end_with(ErrorClass kind, std::string cause) noexcept;
  // Its device is of no further use: it failed at one of the calls first … call.
  void lose_device(const wire::Error& error);
  [[noreturn]] void raise_lost();
  void append_frees() REQUIRES(submit_mutex_);
  void forget_frees() noexcept;
  template <typename TakeIn>
  void complete(uint64_t id, TakeIn&& take_in);
  void on_error(wire::Reader& reader);
  void take_body(Request& request, std::span<const std::byte> body);
  // A pending download that has failed, for a cause that the user does not know from elsewhere.
  std::shared_ptr<Request> find_failed_download();
  void note_failure(const wire::Error& error);
  void tell_known_failure(const Uses& uses);
  [[noreturn]] void tell(const Failure& failure, const Uses& uses);
  // `device` is for an error whose call is not known.
  std::string describe(const wire::Error& error, std::optional<CallSite> site, uint8_t device);
  bool has_credit();

  // client/session_waits.cpp
  enum class Waiter { kUser, kExit };
  // `ready` is asked under replies_mutex_. Raises when the session is lost first, or the user interrupts. After a
  // second a terminal is told what is waited for; at exit stderr is, whatever it is.
  void wait_until(const std::function<bool()>& ready, const char* what,
                  Waiter waiter = Waiter::kUser);
  void look_for_interrupt();
  // The server has done the calls up to this number.
  void confirm(uint64_t call);
  uint64_t calls_left() const;
  std::string describe_oldest_call();
  std::string describe_wait(const char* what);
  std::string describe_unconfirmed();
  std::string describe_untold(const std::vector<Failure>& failures);
  void say_wait(const char* what);
  void say_exit_wait();

  // transport::Connection::Handler
  std::vector<std::byte> take_messages(uint32_t& calls) override;
  void on_messages(uint64_t sequence, std::vector<std::byte> payload) override;
  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override;
  void on_bulk(uint64_t lane, uint64_t offset, uint64_t length, bool last) override;
  void on_progress() override;
  void on_broken(std::exception_ptr cause, uint64_t received) override;  // client/resume.cpp
  void on_end(std::exception_ptr cause) noexcept override;

  // client/resume.cpp
  struct Reached {
    std::unique_ptr<transport::Stream> stream;
    wire::Welcome welcome;
  };

  Reached reach(const Open& open, const std::string& token);
  std::unique_ptr<transport::Stream> dial_again(std::chrono::steady_clock::time_point begin,
                                                std::chrono::milliseconds& pause);
  transport::Connection::Options connection_options(const wire::Welcome& welcome);
  std::string try_to_resume(uint64_t received, std::chrono::milliseconds time);

  // constant after construction
  const std::string url_;

  Counters counters_;
  ServerOperators operators_;
  Faults faults_;
  std::atomic<uint64_t> next_name_{1};
  std::atomic<uint64_t> next_generator_{wire::kFirstGenerator};
  std::atomic<uint64_t> next_request_{1};
  std::atomic<StorageRecord*> frees_{nullptr};  // Note [Frees in order] in client/frees.cpp
  std::atomic<uint64_t> freed_bytes_{0};        // about: of the storages in that list
  std::atomic<bool> lost_{false};
  std::atomic<bool> stopped_{false};  // by the user, and not lost before
  std::atomic<bool> opened_{false};
  std::atomic<bool> is_loss_told_{false};  // somebody was raised why the session is lost
  std::atomic<uint64_t> submitted_{0};     // call_number_, for those without the submit lock
  std::atomic<uint64_t> confirmed_{0};     // calls up to this number are done: an answer said so
  std::atomic<std::chrono::steady_clock::time_point> last_notice_{};  // of a long wait, on stderr

  Mutex submit_mutex_;
  wire::Writer writer_ GUARDED_BY(submit_mutex_);
  wire::NameState names_ GUARDED_BY(submit_mutex_);
  uint32_t calls_ GUARDED_BY(submit_mutex_) = 0;    // numbered ones in writer_
  uint64_t encoded_ GUARDED_BY(submit_mutex_) = 0;  // bytes of frames cut so far
  std::deque<Segment> segments_ GUARDED_BY(submit_mutex_);
  SignatureTable signatures_ GUARDED_BY(submit_mutex_);
  std::vector<uint64_t> free_names_ GUARDED_BY(submit_mutex_);
  ContextMirror context_ GUARDED_BY(submit_mutex_);
  uint64_t call_number_ GUARDED_BY(submit_mutex_) = 0;
  uint64_t stream_thread_ GUARDED_BY(submit_mutex_) = 0;  // the last THREAD
  CallLines lines_;                                       // put under submit_mutex_
  std::atomic<uint64_t> buffered_bytes_{0};
  std::atomic<uint64_t> bulk_bytes_{0};  // of uploads that the server has not all received

  // Guards what threads wait for: the handshake, replies, credit, the end.
  Mutex replies_mutex_;
  CondVar changed_;
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_ GUARDED_BY(replies_mutex_);
  wire::Welcome welcome_ GUARDED_BY(replies_mutex_);
  std::string cause_ GUARDED_BY(replies_mutex_);
  ErrorClass cause_class_ GUARDED_BY(replies_mutex_) = ErrorClass::kSessionLost;
  bool was_open_ GUARDED_BY(replies_mutex_) = false;

  CallWindow call_window_;
  std::atomic<int> credit_waiters_{0};

  const std::function<void()> clean_up_;
  std::unique_ptr<transport::Connection> connection_;  // set once, before opened_
  std::atomic<bool> opener_ended_{false};

  const Redial redial_;
  const std::chrono::milliseconds keepalive_;
  const std::chrono::milliseconds patience_;
  const std::function<std::string()> post_mortem_;
  const bool has_listener_;
  Ticket ticket_;  // set once, before connection_
  std::atomic<bool> resuming_{false};
};

template <typename Append>
bool Session::try_submit(uint32_t calls, Append&& append) {
  if (is_lost())
    return false;
  {
    MutexLock lock(submit_mutex_);
    if (freed_bytes_.load(std::memory_order_relaxed) >= kFreedAtOnce)
      append_frees();
    const uint64_t before = encoded_ + writer_.size();
    if (const uint64_t thread = current_thread(); thread != stream_thread_) [[unlikely]]
      wire::encode_thread(writer_, stream_thread_ = thread);
    if (!append(writer_, names_, signatures_))
      return true;
    const uint64_t added = encoded_ + writer_.size() - before;
    submitted_.store(call_number_, std::memory_order_relaxed);
    counters_.calls += calls;
    counters_.bytes_sent += added;
    buffered_bytes_.fetch_add(added, std::memory_order_relaxed);
    if (writer_.size() >= kFrameTarget) {
      append_frees();
      cut_frame();
    }
  }
  if (opened_.load(std::memory_order_acquire))
    connection_->flush_soon();
  return true;
}

}  // namespace torch_remote::client
