#include "client/backend/streams.h"

#include <array>
#include <atomic>
#include <unordered_map>

#include "base/mutex.h"
#include "client/machines/machines.h"
#include "client/memory/downloads.h"
#include "client/memory/storage.h"
#include "client/process/current_device.h"
#include "client/process/process.h"
#include "client/process/recording.h"
#include "client/session/pending.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "wire/streams.h"

namespace torch_remote::client {

struct Event {
  Session* session = nullptr;
  uint64_t name = 0;
  uint8_t device = 0;
  uint64_t after = 0;    // the last call before it
  uint64_t uploads = 0;  // the requests of uploads before it have smaller ids
};

namespace {

using wire::StreamAction;
using wire::StreamMessage;

uint64_t number_of(const c10::Stream& stream) {
  check_stream(stream);
  return static_cast<uint64_t>(stream.id());
}

// How many events each session has: the server ends a session that makes too many. Thread-safe.
class LiveEvents {
 public:
  static LiveEvents& instance() {
    static auto* const events = new LiveEvents;  // leaks: events may be destroyed at exit
    return *events;
  }

  void add(Session& session) {
    MutexLock lock(mutex_);
    uint64_t& count = counts_[&session];
    TORCH_CHECK(count < wire::kMaxEvents, "there are already ", wire::kMaxEvents,
                " recorded events of one machine; delete some first");
    ++count;
  }

  void remove(Session& session) {
    MutexLock lock(mutex_);
    --counts_[&session];
  }

 private:
  Mutex mutex_;
  std::unordered_map<Session*, uint64_t> counts_ GUARDED_BY(mutex_);
};

void send(Session& session, const StreamMessage& message) {
  Submission at(session);
  encode(at.writer(), message);
}

DevicePlace place_of(const c10::Stream& stream) {
  const DevicePlace place = Machines::instance().place(stream.device_index());
  TORCH_CHECK_NOT_IMPLEMENTED(
      (place.session->welcome().capabilities & wire::kStreamsCapability) != 0, "the server of ",
      place.session->describe(place.device),
      " is older than this client and has no streams; update it");
  return place;
}

// A query that waits: also for downloads, and for the uploads whose requests have smaller ids than
// `uploads`, so that their sources are free afterwards.
bool ask(Session& session, wire::QueryKind kind, const char* what, const wire::DoneQuery& query,
         uint64_t uploads = 0) {
  check_not_recording(what);
  const auto body = session.query(kind, what, [&](wire::Writer& writer) {
    if (kind == wire::QueryKind::kStream)
      encode_stream_query(writer, query);
    else
      encode_event_query(writer, query);
  });
  if (query.waits) {
    finish_uploads(session, uploads);
    finish_downloads(session);
    SentSources::instance().free_done();
  }
  session.raise_own_failure();
  return decode_answer(session, body, wire::decode_done);
}

// The server has reached the place behind this call, it has received the uploads whose requests
// have smaller ids than `uploads`, and downloads are here. On a CPU the work before the place is
// done then. Does not wait.
bool has_reached(Session& session, uint64_t call, uint64_t uploads) {
  check_not_recording("a question about a stream or an event");
  if (calls_done(session) >= call)
    return are_downloads_here(session) && session.requests().uploads_before(uploads).empty();
  session.link().flush();
  return false;
}

}  // namespace

c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::Device(device.type(), current_device());
}

void check_stream(const c10::Stream& stream) {
  TORCH_CHECK(stream.id() >= 0 && static_cast<uint64_t>(stream.id()) <= wire::kMaxStreams,
              stream.device(), " has no stream with the id ", stream.id(),
              ": torch.remote.Stream() makes streams, with ids up to ", wire::kMaxStreams);
}

c10::Stream new_stream(c10::Device wanted, bool has_high_priority) {
  const c10::Device device = with_index(wanted);
  constexpr uint64_t kHalf = wire::kMaxStreams / 2;
  static std::array<std::array<std::atomic<uint64_t>, 2>, wire::kMaxDevices> made;
  TORCH_CHECK(device.index() < kMaxDevices, device, " does not exist");
  const uint64_t next =
      made.at(static_cast<size_t>(device.index()))[has_high_priority ? 1 : 0]++ % kHalf;
  const uint64_t number = 1 + next + (has_high_priority ? kHalf : 0);
  return c10::Stream(c10::Stream::UNSAFE, device, static_cast<c10::StreamId>(number));
}

void record_event(Event*& event, const c10::Stream& stream, c10::EventFlag flag) {
  const DevicePlace place = place_of(stream);  // the first use of a device starts its machine
  if (event != nullptr && event->session != place.session) {
    destroy_event(event);
    event = nullptr;
  }
  const uint64_t number = number_of(stream);
  if (event == nullptr) {
    LiveEvents::instance().add(*place.session);
    event = new Event{place.session, place.session->order().new_names().event(), place.device};
  }
  event->device = place.device;
  StreamMessage message{StreamAction::kRecord, place.device, number, event->name};
  message.is_timed = flag == c10::EventFlag::BACKEND_DEFAULT;
  Submission at(*place.session);
  encode(at.writer(), message);
  event->after = at.last_call();
  event->uploads = place.session->requests().next_id();
}

void wait_for_event(const Event& event, const c10::Stream& stream) {
  if (!Machines::instance().has_device(stream.device_index()))
    return synchronize_event(event);
  const DevicePlace place = place_of(stream);
  if (place.session != event.session)
    return synchronize_event(event);
  send(*place.session, {StreamAction::kWait, place.device, number_of(stream), event.name});
}

void destroy_event(Event* event) noexcept {
  if (event == nullptr)
    return;
  if (!in_forked_child() && !is_exiting()) {
    if (!event->session->link().is_lost()) {
      Submission at(*event->session, IfLost::kWrite);
      encode(at.writer(), StreamMessage{StreamAction::kForget, event->device, 0, event->name});
    }
    LiveEvents::instance().remove(*event->session);
  }
  delete event;
}

bool has_happened(const Event& event) {
  if (!has_reached(*event.session, event.after, event.uploads))
    return false;
  if (device_kind(*event.session, event.device) == wire::DeviceKind::kCpu)
    return true;
  return ask(*event.session, wire::QueryKind::kEvent, "an event", {.event = event.name});
}

void synchronize_event(const Event& event) {
  ask(*event.session, wire::QueryKind::kEvent, "an event", {.event = event.name, .waits = true},
      event.uploads);
}

double elapsed_milliseconds(const Event& first, const Event& second) {
  TORCH_CHECK(first.session == second.session,
              "elapsed_time needs two events of one machine; these are of two");
  const auto body =
      first.session->query(wire::QueryKind::kElapsed, "elapsed_time", [&](wire::Writer& writer) {
        encode(writer, wire::ElapsedQuery{first.name, second.name});
      });
  return decode_answer(*first.session, body, wire::decode_elapsed);
}

bool is_done(const c10::Stream& stream) {
  check_stream(stream);
  const DevicePlace place = Machines::instance().place_if_there(stream.device_index());
  if (place.session == nullptr)
    return true;
  Session& session = *place.session;
  if (!has_reached(session, session.order().submitted(), session.requests().next_id()))
    return false;
  if (device_kind(*place.session, place.device) == wire::DeviceKind::kCpu)
    return true;
  return ask(*place.session, wire::QueryKind::kStream, "a stream",
             {.device = place.device, .stream = number_of(stream)});
}

void synchronize_stream(const c10::Stream& stream) {
  check_stream(stream);
  if (Machines::instance().place_if_there(stream.device_index()).session == nullptr)
    return;
  const DevicePlace place = place_of(stream);
  const uint64_t uploads = place.session->requests().next_id();
  ask(*place.session, wire::QueryKind::kStream, "a stream",
      {.device = place.device, .stream = number_of(stream), .waits = true}, uploads);
}

void record_stream(const c10::DataPtr& data, const c10::Stream& stream) {
  if (data.get_deleter() != &delete_record)
    return;
  auto& record = *static_cast<StorageRecord*>(data.get_context());
  const DevicePlace place = Machines::instance().place_if_there(stream.device_index());
  if (place.session != session_of(record))
    return;
  const StreamMessage message{StreamAction::kRecordStream, place.device, number_of(stream),
                              record.name};
  const CallSite site{current_line(), record.server_device};
  Submission at(*place.session);
  at.announce(record, site);
  encode(at.writer(), message);
}

}  // namespace torch_remote::client
