#include "client/session/requests.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote::client {

DoneSignal::DoneSignal() : ends_(pipe_pair()) {}

void DoneSignal::set() noexcept {
  if (is_set_.exchange(true))
    return;
  const char byte = 0;
  while (::write(ends_.second.get(), &byte, 1) < 0 && errno == EINTR) {
  }
}

void DoneSignal::clear() noexcept {
  if (!is_set_)
    return;
  char byte = 0;
  while (::read(ends_.first.get(), &byte, 1) < 0 && errno == EINTR) {
  }
  is_set_ = false;
}

namespace {

// How long abandon() waits for the chunk that is being received.
constexpr auto kChunkPatience = std::chrono::seconds(1);

void take_results(Request& request, std::span<const std::byte> body) {
  wire::Reader reader(body);
  request.results = wire::decode_results(reader);
  reader.finish();
  if (wire::count_fresh(request.results) > request.names)
    throw ProtocolError("a call gave more storages than it has names for");
}

void take_body(Request& request, std::span<const std::byte> body) {
  if (request.names != 0)  // also if it is abandoned: the results are to be freed
    return take_results(request, body);
  if (request.destination.empty()) {
    request.body.assign(body.begin(), body.end());
    return;
  }
  if (request.is_abandoned)
    return;
  if (body.size() != request.destination.size()) {
    throw ProtocolError("a reply of " + std::to_string(body.size()) + " bytes where " +
                        std::to_string(request.destination.size()) + " were asked for");
  }
  std::memcpy(request.destination.data(), body.data(), body.size());
}

}  // namespace

RequestPtr Requests::make(std::span<std::byte> destination, std::shared_ptr<const void> owner,
                          uint64_t after) {
  auto request = std::make_shared<Request>();
  request->id = next_.fetch_add(1, std::memory_order_relaxed);
  request->destination = destination;
  request->owner = std::move(owner);
  request->after = after;
  MutexLock lock(mutex_);
  open_.emplace(request->id, request);
  return request;
}

RequestPtr Requests::make_upload(uint64_t bytes, uint64_t after) {
  auto request = std::make_shared<Request>();
  request->id = next_.fetch_add(1, std::memory_order_relaxed);
  request->upload_bytes = bytes;
  request->after = after;
  MutexLock lock(mutex_);
  open_.emplace(request->id, request);
  return request;
}

std::vector<RequestPtr> Requests::uploads_before(uint64_t id) {
  std::vector<RequestPtr> uploads;
  MutexLock lock(mutex_);
  for (const auto& [number, request] : open_)
    if (number < id && request->upload_bytes != 0)
      uploads.push_back(request);
  return uploads;
}

void Requests::forget(const Request& request) {
  MutexLock lock(mutex_);
  open_.erase(request.id);
}

bool Requests::abandon_answer(Request& request) {
  MutexLock lock(mutex_);
  // Once it is done, the reader thread does not look again: the caller frees.
  request.is_abandoned = !request.done;
  return request.done;
}

bool Requests::abandon(const Request& request) {
  const auto deadline = std::chrono::steady_clock::now() + kChunkPatience;
  MutexLock lock(mutex_);
  const auto found = open_.find(request.id);
  if (found == open_.end())
    return true;
  found->second->is_abandoned = true;
  while (filling_ == request.id && std::chrono::steady_clock::now() < deadline)
    changed_.wait_until(mutex_, deadline);
  return filling_ != request.id;
}

void Requests::clear() {
  std::unordered_map<uint64_t, RequestPtr> open;  // destroyed without the lock
  MutexLock lock(mutex_);
  open.swap(open_);
}

RequestPtr Requests::take_answered(uint64_t id) {
  const auto found = open_.find(id);
  if (found == open_.end())
    throw ProtocolError("a reply to a request that nobody made");
  RequestPtr request = std::move(found->second);
  open_.erase(found);
  confirmed_ = std::max({confirmed_.load(), request->after, request->call});
  return request;
}

void Requests::finish(Request& request) {
  request.done = true;
  for (const auto& signal : std::exchange(request.signals, {}))
    signal->set();
}

RequestPtr Requests::reply(const wire::Reply& reply) {
  RequestPtr request;
  {
    MutexLock lock(mutex_);
    request = take_answered(reply.request);
    take_body(*request, reply.body);
    finish(*request);
  }
  changed_.notify_all();
  return request;
}

void Requests::fail(uint64_t id, wire::Error error) {
  {
    MutexLock lock(mutex_);
    const RequestPtr request = take_answered(id);
    request->error = std::move(error);
    request->failed = true;
    finish(*request);
  }
  changed_.notify_all();
}

std::span<std::byte> Requests::bulk_target(uint64_t id, uint64_t offset, uint64_t length) {
  MutexLock lock(mutex_);
  const auto found = open_.find(id);
  if (found == open_.end())
    throw ProtocolError("bulk bytes that nobody asked for");
  const auto& destination = found->second->destination;
  if (offset > destination.size() || length > destination.size() - offset)
    throw ProtocolError("bulk bytes beyond what was asked for");
  if (offset != found->second->received)
    throw ProtocolError("bulk bytes out of order");
  filling_ = found->second->is_abandoned ? 0 : id;
  if (found->second->is_abandoned) {
    changed_.notify_all();  // abandon() may wait since before a resume
    dropped_.resize(length);
    return dropped_;
  }
  return destination.subspan(offset, length);
}

void Requests::add_bulk(uint64_t id, uint64_t length, bool last) {
  RequestPtr ended;  // destroyed without the lock
  {
    MutexLock lock(mutex_);
    const auto found = open_.find(id);
    if (found == open_.end())
      return;
    Request& request = *found->second;
    request.received += length;
    filling_ = 0;
    if (request.is_abandoned)
      changed_.notify_all();
    if (!last)
      return;
    if (request.received != request.destination.size())
      throw ProtocolError("fewer bulk bytes than were asked for");
    ended = take_answered(id);
    finish(*ended);
  }
  changed_.notify_all();
}

void Requests::complete_upload(uint64_t id) {
  {
    MutexLock lock(mutex_);
    const auto found = open_.find(id);
    if (found == open_.end())
      return;
    finish(*found->second);
    open_.erase(found);
  }
  changed_.notify_all();
}

void Requests::signal_when_done(Request& request, std::shared_ptr<DoneSignal> signal) {
  MutexLock lock(mutex_);
  if (request.done)
    return signal->set();
  request.signals.push_back(std::move(signal));
}

void Requests::signal_all() {
  MutexLock lock(mutex_);
  for (const auto& [id, request] : open_)
    for (const auto& signal : request->signals)
      signal->set();
}

bool Requests::wait_for(const std::function<bool()>& ready, std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  if (ready())
    return true;
  if (time.count() > 0)
    changed_.wait_for(mutex_, time);
  return ready();
}

void Requests::wake() {
  { MutexLock lock(mutex_); }
  changed_.notify_all();
}

}  // namespace torch_remote::client
