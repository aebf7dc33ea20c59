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

void Session::raise_failed(const Request& request) {
  raise_failed(request.error, request.device, {});
}

void Session::raise_failed(const wire::Error& error, uint8_t device, const std::string& others) {
  if (error.signature != 0)
    with_signatures([&](SignatureTable& table) { table.mark_failed(error.signature - 1); });
  const std::string text = describe(error, device) + others;
  const bool undoes =
      error.call != 0 && python_hooks.undo != nullptr && python_hooks.undo(*this, error.call);
  heal(error, undoes);
  raise_remote(error, text);
}

void Session::heal(const wire::Error& error, bool undoes) {
  if (error.call == 0)
    return;  // a read, say: nothing was poisoned
  try_submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
    encode(writer, wire::Heal{error.call, undoes});
    return true;
  });
  MutexLock lock(replies_mutex_);
  known_failures_.erase(error.call);
}

// The server reports a failed call at once, unasked. It is kept until the user has been told of it.
void Session::note_failure(const wire::Error& error) {
  constexpr size_t kMost = 1024;
  MutexLock lock(replies_mutex_);
  if (known_failures_.size() < kMost)
    known_failures_.emplace(error.call, KnownFailure{error, lines_.find(error.call)});
}

std::optional<CallSite> Session::site_of(const wire::Error& error) {
  if (error.call == 0)
    return std::nullopt;
  MutexLock lock(replies_mutex_);
  const auto found = known_failures_.find(error.call);
  return found != known_failures_.end() ? found->second.site : lines_.find(error.call);
}

std::string Session::describe(const wire::Error& error, uint8_t device) {
  const CallSite site = site_of(error).value_or(CallSite{0, device});
  return error.operator_name + " on " + describe(site.device) + describe_line(site.line) + ": " +
         error.message;
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
      take_body(*request, reader.bytes(wire::kMaxReplyBytes, "reply"));
    }
    request->failed = failed;
    request->done = true;
  }
  confirm(request->after);
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
      if (error.first != 0) {
        lose_device(error);
        continue;
      }
      if (error.call != 0) {
        note_failure(error);
        continue;
      }
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
    writer.u8(static_cast<uint8_t>(wire::Tag::kQuery));
    writer.varint(request->id);
    writer.u8(static_cast<uint8_t>(kind));
    if (write_body)
      write_body(writer);
    return true;
  });
  wait(request, what.c_str());
  return std::move(request->body);
}

std::vector<uint64_t> Session::taints(uint64_t cause, const std::vector<at::Tensor>& tensors) {
  std::vector<uint64_t> taints(tensors.size(), wire::kUntouched);
  wire::TaintQuery asked{cause, {}};
  std::vector<size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_privateuseone() || !tensors[i].has_storage())
      continue;
    const StorageRecord* const record = record_of(tensors[i]);
    if (session_of(*record) != this || !record->announced.load(std::memory_order_relaxed))
      continue;
    asked.names.push_back(record->name);
    places.push_back(i);
  }
  const auto body = query(wire::QueryKind::kTaints, "what a failure has done",
                          [&](wire::Writer& writer) { encode(writer, asked); });
  wire::Reader reader(body);
  for (const size_t place : places)
    taints[place] = reader.varint();
  return taints;
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

wire::Failures Session::finish_calls() {
  const std::vector<std::byte> body = query(wire::QueryKind::kBarrier, "synchronize");
  wire::Reader reader(body);
  return wire::decode_failures(reader);
}

void Session::synchronize() {
  const auto pending = PendingDownloads::instance().of(*this);
  wire::Failures failures = finish_calls();
  for (const auto& request : pending)
    wait_until([&] { return request->done.load(); }, "a download");
  const auto download = add_failed_downloads(failures);
  if (failures.errors.empty())
    return;
  std::string others;
  if (failures.total > 1)
    others = "\n(" + std::to_string(failures.total - 1) +
             " more remote calls failed; each later synchronize() raises one of them)";
  const wire::Error first = failures.errors.front();
  PendingDownloads::instance().forget_cause(*this, first.call, download.get());
  raise_failed(first, download == nullptr ? 0 : download->device, others);
}

// The server lists the cause too, unless the user knows it from an earlier read, or the READ itself
// has failed.
std::shared_ptr<Request> Session::add_failed_downloads(wire::Failures& failures) {
  std::shared_ptr<Request> first;
  for (const auto& request : PendingDownloads::instance().of(*this)) {
    if (!request->done || !request->failed)
      continue;
    const auto is_same = [&](const wire::Error& error) {
      return error.call != 0 && error.call == request->error.call;
    };
    if (std::any_of(failures.errors.begin(), failures.errors.end(), is_same))
      continue;
    if (failures.errors.empty())
      first = request;
    failures.errors.push_back(request->error);
    ++failures.total;
  }
  return first;
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
