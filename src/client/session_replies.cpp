// A session's requests, and what the server answers.
#include "base/error.h"
#include "base/log.h"
#include "client/session.h"
#include "wire/limits.h"

namespace torch_remote::client {

std::shared_ptr<Request> Session::make_request(std::span<std::byte> destination,
                                               std::shared_ptr<const void> owner) {
  auto request = std::make_shared<Request>();
  request->id = next_request_.fetch_add(1, std::memory_order_relaxed);
  request->destination = destination;
  request->owner = std::move(owner);
  MutexLock lock(replies_mutex_);
  requests_.emplace(request->id, request);
  return request;
}

void Session::wait_quietly(const std::shared_ptr<Request>& request, const char* what) {
  ++counters_.syncs;
  if (opened_.load(std::memory_order_acquire))
    connection_->flush();
  wait_until([&] { return request->done; }, what);
}

void Session::wait(const std::shared_ptr<Request>& request, const char* what) {
  wait_quietly(request, what);
  if (request->failed)
    raise_failed(*request);
}

void Session::raise_failed(const Request& request) {
  const wire::Error& error = request.error;
  if (error.signature != 0)
    with_signatures([&](SignatureTable& table) { table.mark_failed(error.signature - 1); });
  raise_remote(error,
               error.operator_name + " on " + describe(request.device) + ": " + error.message);
}

void Session::forget(const Request& request) {
  MutexLock lock(replies_mutex_);
  requests_.erase(request.id);
}

void Session::complete(uint64_t id, bool failed, wire::Reader& reader) {
  std::shared_ptr<Request> request;
  {
    MutexLock lock(replies_mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end())
      throw ProtocolError("a reply to a request that nobody made");
    request = std::move(found->second);
    requests_.erase(found);
    if (failed) {
      request->error = wire::decode_error(reader);
    } else {
      if (!request->destination.empty())
        throw ProtocolError("a reply where bulk bytes were asked for");
      const auto body = reader.bytes(wire::kMaxReplyBytes, "reply");
      request->body.assign(body.begin(), body.end());
    }
    request->failed = failed;
    request->done = true;
    request->owner.reset();
  }
  changed_.notify_all();
}

void Session::on_messages(uint64_t sequence, std::vector<std::byte> payload) {
  wire::Reader reader(payload);
  while (!reader.empty()) {
    const auto tag = static_cast<wire::Tag>(reader.u8());
    const uint64_t request = reader.varint();
    if (tag == wire::Tag::kReply) {
      complete(request, false, reader);
    } else if (tag == wire::Tag::kError && request != 0) {
      complete(request, true, reader);
    } else if (tag == wire::Tag::kError) {
      const wire::Error error = wire::decode_error(reader);
      log(LogLevel::kWarning, "the server says",
          {{"operator", error.operator_name}, {"message", error.message}});
    } else {
      throw ProtocolError("the server sent a message that only clients send");
    }
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
    request.owner.reset();
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

std::vector<std::byte> Session::query(wire::QueryKind kind, const char* what, uint64_t name) {
  const auto request = make_request({}, nullptr);
  submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
    writer.u8(static_cast<uint8_t>(wire::Tag::kQuery));
    writer.varint(request->id);
    writer.u8(static_cast<uint8_t>(kind));
    if (name != 0)
      writer.varint(name);
    return true;
  });
  wait(request, what);
  return std::move(request->body);
}

void Session::synchronize() {
  query(wire::QueryKind::kBarrier, "synchronize");
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
