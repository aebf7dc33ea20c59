#include "client/session.h"

#include <algorithm>

#include "base/cause.h"
#include "base/error.h"
#include "base/log.h"
#include "base/platform.h"
#include "client/downloads.h"
#include "client/machines.h"
#include "client/process.h"
#include "client/storage.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kByteWindow = 64 << 20;

std::string reason_of(const std::exception_ptr& cause) {
  return cause == nullptr ? "the server closed the session" : text_of(cause);
}

// The cause, with what is known of why the server is gone in front.
std::exception_ptr explained(std::exception_ptr cause, const std::string& why) {
  if (why.empty())
    return cause;
  return std::make_exception_ptr(ConnectionError(why + " (" + reason_of(cause) + ")"));
}

ErrorClass class_of(const std::exception_ptr& cause) {
  if (cause == nullptr)
    return ErrorClass::kSessionLost;
  try {
    std::rethrow_exception(cause);
  } catch (const ProtocolError&) {
    return ErrorClass::kProtocol;
  } catch (const ConnectionError&) {
    return ErrorClass::kConnection;
  } catch (...) {
    return ErrorClass::kConnection;
  }
}

}  // namespace

Session::Session(std::string url, Way way, std::string token)
    : url_(std::move(url)),
      clean_up_(std::move(way.clean_up)),
      redial_(std::move(way.redial)),
      keepalive_(keepalive_limit()),
      patience_(resume_patience()),
      post_mortem_(std::move(way.post_mortem)),
      has_listener_(way.has_listener) {
  std::thread([this, open = std::move(way.open), token = std::move(token)]() mutable {
    this->open(std::move(open), std::move(token));
    opener_ended_ = true;
  }).detach();  // sessions are never destroyed
}

void Session::open(Open open, std::string token) {
  bool is_stopped = false;
  try {
    begin_worker_thread("tr-open");
    auto [stream, welcome] = reach(open, token);
    if (log_enabled(LogLevel::kInfo)) {
      log(LogLevel::kInfo, "connected",
          {{"url", url_},
           {"host", welcome.host},
           {"session", welcome.session},
           {"torch", welcome.torch_version}});
    }
    ticket_ = {welcome.session, welcome.secret, token};
    connection_ = std::make_unique<transport::Connection>(std::move(stream), *this,
                                                          connection_options(welcome));
    connection_->start();
    MutexLock lock(replies_mutex_);
    welcome_ = std::move(welcome);
    was_open_ = true;
    is_stopped = is_lost();
    opened_.store(true, std::memory_order_release);
  } catch (...) {
    fail(std::current_exception());
    if (clean_up_)
      clean_up_();
    return;
  }
  changed_.notify_all();
  if (is_stopped) {  // stop() has found nothing to close, and perhaps no process to end
    connection_->abort();
    if (clean_up_)
      clean_up_();
    return;
  }
  connection_->flush();
}

const wire::Welcome& Session::welcome() {
  wait_until([this]() REQUIRES(replies_mutex_) { return was_open_; }, "the handshake");
  MutexLock lock(replies_mutex_);
  return welcome_;
}

wire::DeviceKind Session::device_kind(uint8_t device) {
  const auto& devices = welcome().devices;
  return device < devices.size() ? devices[device].kind : wire::DeviceKind::kCpu;
}

std::string Session::describe(uint8_t device) {
  MutexLock lock(replies_mutex_);
  const std::string name =
      c10::Device(c10::kPrivateUse1, Machines::instance().index_of(this, device)).str();
  if (!was_open_)
    return name + " (" + url_ + ")";
  const bool cuda =
      device < welcome_.devices.size() && welcome_.devices[device].kind == wire::DeviceKind::kCuda;
  return name + " (" + welcome_.host + ", " + (cuda ? welcome_.devices[device].name : "cpu") +
         ", session " + welcome_.session + ")";
}

// --- submitting

void Session::cut_frame() {
  if (writer_.empty())
    return;
  counters_.bytes_sent += transport::kHeaderSize;
  encoded_ += writer_.size();
  segments_.push_back({writer_.take(), calls_});
  calls_ = 0;
  names_ = {};
}

void Session::upload(const wire::Begin& begin, CallSite site, std::span<const std::byte> bytes,
                     std::shared_ptr<const void> owner, std::function<void(bool)> on_acknowledged) {
  welcome();  // bulk bytes need a connection to be handed to
  submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) NO_THREAD_SAFETY_ANALYSIS {
    cut_frame();
    number_call(site);
    encode(writer, begin);
    cut_frame();
    return true;
  });
  counters_.bytes_sent += bytes.size();
  bulk_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  auto done = [this, size = bytes.size(), next = std::move(on_acknowledged)](bool received) {
    bulk_bytes_.fetch_sub(size, std::memory_order_relaxed);
    next(received);
  };
  connection_->send_bulk(begin.upload, bytes, std::move(owner), std::move(done));
}

bool Session::announce(wire::Writer& writer, StorageRecord& record, CallSite site) {
  if (record.announced.exchange(true, std::memory_order_relaxed))
    return false;
  number_call(site);
  encode(writer, wire::Resize{record.name, record.server_device,
                              record.nbytes.load(std::memory_order_relaxed)});
  return true;
}

void Session::remember(SignaturePtr known) {
  MutexLock lock(submit_mutex_);
  signatures_.replace(std::move(known));
}

std::vector<std::byte> Session::take_messages(uint32_t& calls) {
  MutexLock lock(submit_mutex_);
  if (segments_.empty()) {
    append_frees();
    cut_frame();
  }
  if (segments_.empty())
    return {};
  Segment segment = std::move(segments_.front());
  segments_.pop_front();
  calls = segment.calls;
  buffered_bytes_.fetch_sub(std::min<uint64_t>(segment.payload.size(), buffered_bytes_.load()),
                            std::memory_order_relaxed);
  return std::move(segment.payload);
}

// --- credit

bool Session::has_credit() {
  const uint64_t bytes = buffered_bytes_.load(std::memory_order_relaxed);
  if (!opened_.load(std::memory_order_acquire)) {
    return bytes < kByteWindow && call_window_.has_room(submitted_.load(std::memory_order_relaxed));
  }
  if (bulk_bytes_.load(std::memory_order_relaxed) >= kByteWindow)
    return false;
  const auto flight = connection_->in_flight();
  const uint64_t submitted = submitted_.load(std::memory_order_relaxed);
  return flight.bytes + bytes < kByteWindow &&
         call_window_.has_room(std::max(submitted, flight.calls_applied) - flight.calls_applied);
}

void Session::wait_for_credit(const Uses& uses) {
  tell_failure(uses);
  if (has_credit())
    return;
  if (opened_.load(std::memory_order_acquire))
    connection_->flush();
  credit_waiters_.fetch_add(1);

  struct Leave {
    std::atomic<int>& waiters;

    ~Leave() { waiters.fetch_sub(1); }
  } leave{credit_waiters_};

  wait_until([this, thread = current_thread()] { return has_credit() || faults_.has(thread); },
             "credit");
  tell_failure(uses);
}

void Session::on_progress() {
  const auto flight = connection_->in_flight();
  const uint64_t submitted =
      std::max(submitted_.load(std::memory_order_relaxed), flight.calls_received);
  call_window_.progress({submitted, flight.calls_received, flight.calls_applied}, Clock::now());
  if (credit_waiters_.load() == 0)
    return;
  { MutexLock lock(replies_mutex_); }
  changed_.notify_all();
}

// --- the end

void Session::end_with(ErrorClass kind, std::string cause) noexcept {
  {
    MutexLock lock(replies_mutex_);
    if (!is_lost()) {
      cause_ = std::move(cause);
      cause_class_ = was_open_ && kind != ErrorClass::kDeviceLost ? ErrorClass::kSessionLost : kind;
    }
    lost_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void Session::fail(std::exception_ptr cause) noexcept {
  end_with(class_of(cause), reason_of(cause));
}

void Session::on_end(std::exception_ptr cause) noexcept {
  const std::string reason = cause == nullptr ? connection_->peer_close_reason() : "";
  if (!reason.empty())
    cause = std::make_exception_ptr(ConnectionError("the server closed the session: " + reason));
  else if (cause != nullptr && post_mortem_ && !is_lost())
    cause = explained(std::move(cause), post_mortem_());
  fail(std::move(cause));
}

void Session::abandon() noexcept {
  lost_.store(true, std::memory_order_release);
  if (opened_.load(std::memory_order_acquire))
    connection_->abandon_in_forked_child();
}

void Session::raise_lost() {
  if (in_forked_child())
    refuse_in_forked_child();
  park_if_exiting();
  is_loss_told_ = true;
  std::string text;
  std::string id;
  ErrorClass kind = ErrorClass::kSessionLost;
  {
    MutexLock lock(replies_mutex_);
    text = cause_;
    kind = cause_class_;
    id = welcome_.session;
  }
  if (kind == ErrorClass::kSessionLost || kind == ErrorClass::kDeviceLost) {
    const std::string name = id.empty() ? "the session" : "session " + id;
    const std::string first =
        stopped_.load(std::memory_order_relaxed) ? "" : "stop() its machine, ";
    raise(kind, name + " on " + url_ +
                    " is lost, and with it the values of its tensors (to go on: " + first +
                    "torch_remote.connect(...), and make them anew): " + text);
  }
  Machines::instance().drop_unreached(this);
  raise(kind, "cannot use " + url_ + ": " + text);
}

void Session::stop(std::chrono::milliseconds patience, const std::string& reason) {
  WithoutGil without_gil;
  const bool was_lost = is_lost();
  if (!was_lost)
    stopped_.store(true, std::memory_order_relaxed);
  end_with(ErrorClass::kSessionLost, reason);  // first: it is the cause of what follows
  if (!was_lost && opened_.load(std::memory_order_acquire))
    connection_->close(reason, patience);
  if (clean_up_)
    clean_up_();
}

bool Session::release() {
  constexpr std::chrono::seconds kPatience{1};
  WithoutGil without_gil;
  if (!opener_ended_ ||
      (opened_.load(std::memory_order_acquire) && !connection_->release(kPatience)))
    return false;
  std::vector<std::unique_ptr<CallLines::Page>> lines;
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests;
  {
    MutexLock lock(replies_mutex_);  // under which lines are looked for
    lines = lines_.take_pages();
    requests.swap(requests_);
  }
  {
    MutexLock lock(submit_mutex_);  // under which lines are put
    signatures_.clear();
    segments_.clear();
    writer_ = {};
    free_names_ = {};
  }
  forget_frees();
  faults_.clear();
  PendingDownloads::instance().forget(*this);
  return true;
}

std::string Session::state() {
  if (stopped_.load(std::memory_order_relaxed))
    return "stopped";
  if (is_lost())
    return "lost";
  if (resuming_.load(std::memory_order_relaxed))
    return "resuming";
  return opened_.load(std::memory_order_acquire) ? "open" : "connecting";
}

uint64_t Session::bytes_received() const {
  return opened_.load(std::memory_order_acquire) ? connection_->bytes_received() : 0;
}

uint64_t Session::frames() const {
  return opened_.load(std::memory_order_acquire) ? connection_->frames_sent() : 0;
}

}  // namespace torch_remote::client
