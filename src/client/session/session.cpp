#include "client/session/session.h"

#include <algorithm>

#include <ATen/record_function.h>

#include "base/error.h"
#include "base/log.h"
#include "client/process/process.h"
#include "client/process/waits_by_line.h"
#include "client/session/pending.h"

namespace torch_remote::client {
namespace {

// How much memory of ours may wait to be sent: messages, and uploads that were copied.
constexpr uint64_t kByteWindow = 64 << 20;
// How many bytes of uploads may be on their way. The server has memory for all of them.
constexpr uint64_t kUploadWindow = uint64_t{1} << 30;

}  // namespace

Session::Session(Endpoint endpoint, SessionOwner* owner)
    : Link(std::move(endpoint)), owner_(owner), stream_(counters_) {
  start();
}

const wire::Welcome& Session::welcome() {
  wait_until([this] { return is_open(); }, "the handshake");
  return Link::welcome();
}

wire::DeviceKind device_kind(Session& session, uint8_t device) {
  const auto& devices = session.welcome().devices;
  return device < devices.size() ? devices[device].kind : wire::DeviceKind::kCpu;
}

KnownUploads& known_uploads(Session& session) {
  return session.known_uploads_;
}

std::string Session::describe(uint8_t device) {
  const std::string name = c10::Device(c10::kPrivateUse1, stream_.index_of(device)).str();
  if (!is_open())
    return name + " (" + url() + ")";
  const wire::Welcome& welcome = Link::welcome();
  const bool cuda =
      device < welcome.devices.size() && welcome.devices[device].kind == wire::DeviceKind::kCuda;
  return name + " (" + welcome.host + ", " + (cuda ? welcome.devices[device].name : "cpu") +
         ", session " + welcome.session + ")";
}

void Session::upload(const wire::Begin& begin, CallSite site, UploadSource source,
                     std::function<void(bool)> on_acknowledged) {
  welcome();  // bulk bytes need an open connection
  wait_for_upload_credit();
  submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) NO_THREAD_SAFETY_ANALYSIS {
    stream_.use_current_stream(site.device);  // or STREAM would come between the cut and BEGIN
    stream_.cut_frame();
    stream_.number_call(site);
    encode(writer, begin);
    stream_.cut_frame();
    return true;
  });
  const uint64_t size = source.bytes.size();
  const uint64_t ours = source.is_ours ? size : 0;
  counters_.bytes_sent += size;
  bulk_bytes_.fetch_add(size, std::memory_order_relaxed);
  our_bulk_bytes_.fetch_add(ours, std::memory_order_relaxed);
  auto done = [this, size, ours, next = std::move(on_acknowledged)](bool received) {
    bulk_bytes_.fetch_sub(size, std::memory_order_relaxed);
    our_bulk_bytes_.fetch_sub(ours, std::memory_order_relaxed);
    next(received);
  };
  connection()->send_bulk(begin.upload, source.bytes, std::move(source.owner), std::move(done));
}

// --- credit

bool Session::has_credit() {
  const uint64_t bytes = stream_.buffered_bytes();
  const uint64_t submitted = stream_.submitted();
  const transport::Connection* const connection = Link::connection();
  if (connection == nullptr)
    return bytes < kByteWindow && call_window_.has_room(submitted);
  const auto flight = connection->in_flight();
  return flight.bytes + bytes < kByteWindow &&
         call_window_.has_room(std::max(submitted, flight.calls_applied) - flight.calls_applied);
}

bool Session::has_upload_credit() {
  return bulk_bytes_.load(std::memory_order_relaxed) < kUploadWindow &&
         our_bulk_bytes_.load(std::memory_order_relaxed) < kByteWindow && has_credit();
}

void Session::wait_for_credit(const Uses& uses) {
  tell_failure(uses);
  if (has_credit())
    return;
  wait_until_credit(&Session::has_credit);
  tell_failure(uses);
}

void Session::wait_for_upload_credit() {
  tell_failure();
  if (has_upload_credit())
    return;
  wait_until_credit(&Session::has_upload_credit);
  tell_failure();
}

void Session::wait_until_credit(bool (Session::*has)()) {
  RECORD_FUNCTION("torch_remote::wait", {});  // a row of torch.profiler
  const LineWait line_wait;
  flush();
  credit_waiters_.fetch_add(1);

  struct Leave {
    std::atomic<int>& waiters;

    ~Leave() { waiters.fetch_sub(1); }
  } leave{credit_waiters_};

  wait_until(
      [this, has, thread = current_thread()] { return (this->*has)() || faults_.has(thread); },
      "credit");
}

void Session::on_progress() {
  const transport::Connection* const connection = Link::connection();
  if (connection == nullptr)
    return;  // the link is about to open
  const auto flight = connection->in_flight();
  const uint64_t submitted = std::max(stream_.submitted(), flight.calls_received);
  call_window_.progress({submitted, flight.calls_received, flight.calls_applied}, Clock::now());
  if (credit_waiters_.load() != 0)
    requests_.wake();
}

// --- what the server sends

std::vector<std::byte> Session::take_messages(uint32_t& calls) {
  return stream_.take_frame(calls);
}

void Session::on_error(wire::Reader& reader) {
  const uint64_t request = wire::decode_error_request(reader);
  wire::Error error = wire::decode_error(reader);
  if (request != 0)
    return requests_.fail(request, std::move(error));
  if (error.first != 0)
    return lose_device(error);
  if (error.call != 0) {
    if (error.thread == 0 || error.call > error.since || error.since > stream_.submitted())
      throw ProtocolError("the server reports a failure of a call that was not made");
    return note_failure(error);
  }
  log(LogLevel::kWarning, "the server says",
      {{"operator", error.operator_name}, {"message", error.message}});
}

void Session::on_reply(const wire::Reply& reply) {
  const RequestPtr request = requests_.reply(reply);
  if (request->is_abandoned)
    free_results(*request);
}

void Session::on_messages(uint64_t sequence, std::vector<std::byte> payload) {
  wire::Reader reader(payload);
  while (!reader.empty()) {
    wire::ReceivedMessage message = wire::next_message(reader);
    if (message.tag == wire::Tag::kReply)
      on_reply(wire::decode_reply(message.body));
    else if (message.tag == wire::Tag::kError)
      on_error(message.body);
    else if (wire::to_text(message.tag) != std::string_view("unknown"))
      throw ProtocolError("the server sent a message that only clients send");
    else
      continue;  // from a newer server; may be ignored
    message.body.finish();
  }
  note_applied(sequence);
}

std::span<std::byte> Session::bulk_target(uint64_t lane, uint64_t offset, uint64_t length) {
  return requests_.bulk_target(lane, offset, length);
}

void Session::on_bulk(uint64_t lane, uint64_t /*offset*/, uint64_t length, bool last) {
  requests_.add_bulk(lane, length, last);
}

void Session::on_change() noexcept {
  requests_.wake();
  if (is_lost())
    requests_.signal_all();
}

// --- the end

void Session::lose_device(const wire::Error& error) {
  const CallSite last = stream_.site_of(error.call).value_or(CallSite{});
  const CallSite first = stream_.site_of(error.first).value_or(CallSite{});
  std::string text = error.operator_name + " on " + describe(last.device);
  if (error.first >= error.call) {
    text += describe_line(last.line);
  } else {
    text += ", or one of the " + std::to_string(error.call - error.first) + " calls before it";
    const std::string from = describe_line(first.line);
    const std::string to = describe_line(last.line);
    if (!from.empty() && !to.empty())
      text += " (the first" + from + "; the last" + to + ")";
    text += "; TORCH_REMOTE_BLOCKING=1 tells which";
  }
  end_and_close(ErrorClass::kDeviceLost, text + ": " + error.message);
}

void Session::raise_lost() {
  if (in_forked_child())
    refuse_in_forked_child();
  park_if_exiting();
  const auto [kind, text, id] = take_ending();
  if (kind == ErrorClass::kSessionLost || kind == ErrorClass::kDeviceLost) {
    const std::string name = id.empty() ? "the session" : "session " + id;
    const std::string first = was_stopped() ? "" : "stop() its machine, ";
    raise(kind, name + " on " + url() + " is lost: " + text +
                    "; the values of its tensors are lost too; to go on, " + first +
                    "call torch_remote.connect(...) and make them anew");
  }
  if (owner_ != nullptr)
    owner_->drop_unreached(this);
  const std::string dialling = "connecting to " + url() + ": ";
  raise(kind, "cannot use " + url() + ": " +
                  (text.starts_with(dialling) ? text.substr(dialling.size()) : text));
}

bool Session::release() {
  WithoutGil without_gil;
  if (!Link::release())
    return false;
  requests_.clear();
  stream_.clear();
  faults_.clear();
  PendingDownloads::instance().forget(*this);
  return true;
}

}  // namespace torch_remote::client
