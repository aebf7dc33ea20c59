#include "client/session/session.h"

#include "base/error.h"
#include "base/log.h"
#include "client/process/process.h"
#include "client/session/pending.h"

namespace torch_remote::client {

Session::Session(Endpoint endpoint, SessionOwner* owner)
    : owner_(owner), order_(counters_), link_(std::move(endpoint), *this) {
  link_.start();
}

const wire::Welcome& Session::welcome() {
  wait_until([this] { return link_.is_open(); }, "the handshake");
  return link_.welcome();
}

wire::DeviceKind device_kind(Session& session, uint8_t device) {
  const auto& devices = session.welcome().devices;
  return device < devices.size() ? devices[device].kind : wire::DeviceKind::kCpu;
}

KnownUploads& known_uploads(Session& session) {
  return session.known_uploads_;
}

std::string Session::describe(uint8_t device) {
  const std::string name = c10::Device(c10::kPrivateUse1, order_.index_of(device)).str();
  if (!link_.is_open())
    return name + " (" + url() + ")";
  const wire::Welcome& welcome = link_.welcome();
  const bool cuda =
      device < welcome.devices.size() && welcome.devices[device].kind == wire::DeviceKind::kCuda;
  return name + " (" + welcome.host + ", " + (cuda ? welcome.devices[device].name : "cpu") +
         ", session " + welcome.session + ")";
}

// --- what the server sends

std::vector<std::byte> Session::take_messages(uint32_t& calls) {
  return order_.take_frame(calls);
}

void Session::on_error(wire::Reader& reader) {
  const uint64_t request = wire::decode_error_request(reader);
  wire::Error error = wire::decode_error(reader);
  if (request != 0)
    return requests_.fail(request, std::move(error));
  if (error.first != 0)
    return lose_device(error);
  if (error.call != 0) {
    if (error.thread == 0 || error.call > error.since || error.since > order_.submitted())
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

void Session::on_messages(std::vector<std::byte> payload) {
  wire::Reader reader(payload);
  while (!reader.empty()) {
    wire::ReceivedMessage message = wire::next_message(reader);
    if (message.tag == wire::Tag::kReply)
      on_reply(wire::decode_reply(message.body));
    else if (message.tag == wire::Tag::kError)
      on_error(message.body);
    else if (message.tag == wire::Tag::kProgress)
      on_call_progress(wire::decode_progress(message.body));
    else if (message.tag == wire::Tag::kWarning)
      on_warning(message.body);
    else if (wire::to_text(message.tag) != std::string_view("unknown"))
      throw ProtocolError("the server sent a message that only clients send");
    else
      continue;  // from a newer server; may be ignored
    message.body.finish();
  }
}

std::span<std::byte> Session::bulk_target(uint64_t lane, uint64_t offset, uint64_t length) {
  return requests_.bulk_target(lane, offset, length);
}

void Session::on_bulk(uint64_t lane, uint64_t length, bool last) {
  requests_.add_bulk(lane, length, last);
}

void Session::on_change() noexcept {
  requests_.wake();
  if (link_.is_lost())
    requests_.signal_all();
}

// --- the end

void Session::lose_device(const wire::Error& error) {
  const CallSite last = order_.site_of(error.call).value_or(CallSite{});
  const CallSite first = order_.site_of(error.first).value_or(CallSite{});
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
  link_.end_and_close(ErrorClass::kDeviceLost, text + ": " + error.message);
}

void Session::raise_lost() {
  if (in_forked_child())
    refuse_in_forked_child();
  park_if_exiting();
  const auto [kind, text, id] = link_.take_ending();
  if (kind == ErrorClass::kSessionLost || kind == ErrorClass::kDeviceLost) {
    const std::string name = id.empty() ? "the session" : "session " + id;
    const std::string first = link_.was_stopped() ? "" : "stop() its machine, ";
    raise(kind,
          name + " on " + url() + " is lost: " + text +
              "; the values of its tensors are lost too; to go on, " + first +
              "call torch_remote.connect(...) and make them anew",
          *this);
  }
  if (owner_ != nullptr)
    owner_->drop_unreached(this);
  raise(kind, "cannot use " + url() + ": " + text, *this);
}

void refuse_answer(Session& session, const ProtocolError& error) {
  {
    WithoutGil without_gil;
    session.link().end_and_close(ErrorClass::kProtocol, error.what());
  }
  session.check_not_lost();
  throw error;  // not reached: the session has ended
}

bool Session::release() {
  WithoutGil without_gil;
  if (!link_.release())
    return false;
  requests_.clear();
  order_.clear();
  faults_.clear();
  PendingDownloads::instance().forget(*this);
  return true;
}

}  // namespace torch_remote::client
