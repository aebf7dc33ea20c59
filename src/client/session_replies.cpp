// A session's requests, and what the server answers.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "client/downloads.h"
#include "client/session.h"
#include "client/storage.h"
#include "wire/limits.h"

namespace torch_remote::client {

std::shared_ptr<Request> Session::make_request(std::span<std::byte> destination,
                                               std::shared_ptr<const void> owner) {
  auto request = std::make_shared<Request>();
  request->id = next_request_.fetch_add(1, std::memory_order_relaxed);
  request->destination = destination;
  request->owner = std::move(owner);
  request->after = submitted_.load(std::memory_order_relaxed);
  MutexLock lock(replies_mutex_);
  requests_.emplace(request->id, request);
  return request;
}

void Session::wait_quietly(const std::shared_ptr<Request>& request, const char* what) {
  ++counters_.syncs;
  if (opened_.load(std::memory_order_acquire))
    connection_->flush();
  wait_until([&] { return request->done.load(); }, what);
  confirm(request->call);
}

void Session::wait(const std::shared_ptr<Request>& request, const char* what) {
  wait_quietly(request, what);
  if (request->failed)
    raise_failed(*request);
}

void Session::forget(const Request& request) {
  MutexLock lock(replies_mutex_);
  requests_.erase(request.id);
}

void Session::take_body(Request& request, std::span<const std::byte> body) {
  if (request.destination.empty())
    return request.body.assign(body.begin(), body.end());
  if (body.size() != request.destination.size())
    throw ProtocolError("a reply of " + std::to_string(body.size()) + " bytes where " +
                        std::to_string(request.destination.size()) + " were asked for");
  std::memcpy(request.destination.data(), body.data(), body.size());
}

template <typename TakeIn>
void Session::complete(uint64_t id, TakeIn&& take_in) {
  std::shared_ptr<Request> request;
  {
    MutexLock lock(replies_mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end())
      throw ProtocolError("a reply to a request that nobody made");
    request = std::move(found->second);
    requests_.erase(found);
    take_in(*request);
    request->done = true;
  }
  confirm(request->after);
  changed_.notify_all();
}

void Session::on_error(wire::Reader& reader) {
  const uint64_t request = reader.varint();
  wire::Error error = wire::decode_error(reader);
  if (request != 0) {
    return complete(request, [&](Request& failed) {
      failed.error = std::move(error);
      failed.failed = true;
    });
  }
  if (error.first != 0)
    return lose_device(error);
  if (error.call != 0)
    return note_failure(error);
  log(LogLevel::kWarning, "the server says",
      {{"operator", error.operator_name}, {"message", error.message}});
}

void Session::on_messages(uint64_t sequence, std::vector<std::byte> payload) {
  wire::Reader reader(payload);
  while (!reader.empty()) {
    wire::ReceivedMessage message = wire::next_message(reader);
    if (message.tag == wire::Tag::kReply) {
      const wire::Reply reply = wire::decode_reply(message.body);
      complete(reply.request, [&](Request& request) { take_body(request, reply.body); });
    } else if (message.tag == wire::Tag::kError) {
      on_error(message.body);
    } else if (wire::to_text(message.tag) != std::string_view("unknown")) {
      throw ProtocolError("the server sent a message that only clients send");
    } else {
      continue;  // a newer server's, which this client does not need to understand
    }
    message.body.finish();
  }
  connection_->applied(sequence);
}

std::span<std::byte> Session::bulk_target(uint64_t lane, uint64_t offset, uint64_t length) {
  MutexLock lock(replies_mutex_);
  const auto found = requests_.find(lane);
  if (found == requests_.end())
    throw ProtocolError("bulk bytes that nobody asked for");
  const auto& destination = found->second->destination;
  if (offset > destination.size() || length > destination.size() - offset) {
    throw ProtocolError("bulk bytes beyond what was asked for");
  }
  if (offset != found->second->received)
    throw ProtocolError("bulk bytes out of order");
  return destination.subspan(offset, length);
}

void Session::on_bulk(uint64_t lane, uint64_t /*offset*/, uint64_t length, bool last) {
  std::shared_ptr<Request> ended;  // dropped without the lock, with its destination
  {
    MutexLock lock(replies_mutex_);
    const auto found = requests_.find(lane);
    if (found == requests_.end())
      return;
    Request& request = *found->second;
    request.received += length;
    if (!last)
      return;
    if (request.received != request.destination.size())
      throw ProtocolError("fewer bulk bytes than were asked for");
    request.done = true;
    confirm(request.after);
    ended = std::move(found->second);
    requests_.erase(found);
  }
  changed_.notify_all();
}

void Session::complete_upload(uint64_t request) {
  {
    MutexLock lock(replies_mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end())
      return;
    found->second->done = true;
    requests_.erase(found);
  }
  changed_.notify_all();
}

std::vector<std::byte> Session::query(wire::QueryKind kind, const std::string& what,
                                      const std::function<void(wire::Writer&)>& write_body) {
  const auto request = make_request({}, nullptr);
  submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
    const wire::Message framed(writer, wire::Tag::kQuery);
    encode_head(writer, wire::Query{request->id, kind});
    if (write_body)
      write_body(writer);
    return true;
  });
  wait(request, what.c_str());
  return std::move(request->body);
}

uint64_t Session::call_number() {
  MutexLock lock(submit_mutex_);
  return call_number_;
}

// What CUDA says of a call may come any number of calls later.
void Session::lose_device(const wire::Error& error) {
  const CallSite last = lines_.find(error.call).value_or(CallSite{});
  const CallSite first = lines_.find(error.first).value_or(CallSite{});
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
  end_with(ErrorClass::kDeviceLost, text + ": " + error.message);
}

wire::Counters Session::server_counters() {
  const std::vector<std::byte> body = query(wire::QueryKind::kCounters, "counters");
  wire::Reader reader(body);
  return wire::decode_counters(reader);
}

wire::Context Session::server_context() {
  const std::vector<std::byte> body = query(wire::QueryKind::kContext, "context");
  wire::Reader reader(body);
  return wire::decode_context(reader);
}

}  // namespace torch_remote::client
