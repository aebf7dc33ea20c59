#include "client/memory/memory_figures.h"

#include <algorithm>
#include <array>
#include <limits>

#include <c10/util/Exception.h>

#include "client/process/memory_history.h"
#include "client/process/process.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

constexpr int64_t kSmall = 64 << 20;

void announce_all(Session& session, uint8_t device) {
  Submission at(session);
  for (StorageRecord* const record : RecordPool::instance().unannounced(&session, device))
    at.announce(*record, {0, device});
}

}  // namespace

wire::MemoryFigures memory_figures(Session& session, uint8_t device, wire::MemoryAction action) {
  TORCH_CHECK_NOT_IMPLEMENTED((session.welcome().capabilities & wire::kMemoryCapability) != 0,
                              "the server of ", session.describe(device),
                              " is older than this client and tells no memory figures; update it");
  announce_all(session, device);
  const auto body =
      session.query(wire::QueryKind::kMemory, "memory figures", [&](wire::Writer& writer) {
        encode(writer, wire::MemoryQuery{device, action});
      });
  return decode_answer(session, body, wire::decode_memory_figures);
}

void limit_memory(Session& session, uint8_t device, double fraction) {
  const auto total =
      static_cast<int64_t>(memory_figures(session, device, wire::MemoryAction::kAsk).total);
  const int64_t allowed = fraction >= 1
                              ? std::numeric_limits<int64_t>::max()
                              : static_cast<int64_t>(static_cast<double>(total) * fraction);
  DeviceMemory& memory = session.order().memory(device);
  memory.set_allowed(allowed, fraction);
  memory.set_mark(total / 2, false);
}

void check_memory_limit(Session& session, uint8_t device, uint64_t added, bool is_counted) {
  const DeviceMemory& memory = session.order().memory(device);
  const int64_t wanted = memory.live() + (is_counted ? 0 : static_cast<int64_t>(added));
  TORCH_CHECK_WITH(OutOfMemoryError, added == 0 || wanted <= memory.allowed(),
                   session.describe(device), " out of memory. Tried to allocate ", added,
                   " bytes. The tensors of this program would have ", wanted,
                   " bytes, and set_per_process_memory_fraction(", memory.allowed_fraction(),
                   ") allows ", memory.allowed());
}

bool find_out_whether_it_fits(Session& session, uint8_t device) {
  DeviceMemory& memory = session.order().memory(device);
  if (memory.is_exact())
    return true;
  const auto& devices = session.welcome().devices;
  if (device >= devices.size())
    return false;
  const auto total = static_cast<int64_t>(devices[device].total_memory);
  const int64_t half = total / 2;
  memory.set_mark(half, false);
  if (memory.live() <= half || (session.welcome().capabilities & wire::kMemoryCapability) == 0)
    return memory.is_above_limit();
  // What the server has free now, with the tensors that it does not know yet not taken off.
  const auto body =
      session.query(wire::QueryKind::kMemory, "memory figures", [&](wire::Writer& writer) {
        encode(writer, wire::MemoryQuery{device, wire::MemoryAction::kAsk});
      });
  const auto figures = decode_answer(session, body, wire::decode_memory_figures);
  int64_t used = 0;
  int64_t cached = 0;
  for (const wire::MemoryStat& stat : figures.stats) {
    if (stat.name == "allocated_bytes.all")
      used = stat.current;
    if (stat.name == "reserved_bytes.all")
      cached = stat.current;
  }
  const int64_t free = static_cast<int64_t>(figures.free) + std::max<int64_t>(cached - used, 0);
  const int64_t margin = std::max(free / 20, std::min({kSmall, total / 16, free}));
  memory.set_mark(used + free - margin, true);
  return memory.is_above_mark();
}

bool must_reserve(Session& session, uint8_t device, uint64_t nbytes) {
  if (nbytes == 0)
    return false;
  const bool may_wait = nbytes > kSmall || session.order().memory(device).has_mark();
  return (may_wait && may_not_fit(session, device)) || is_blocking();
}

// Reads the first byte: the server allocates a storage when it is first used.
void reserve(StorageRecord& record) {
  Session& session = *session_of(record);
  const auto byte = std::make_shared<std::array<std::byte, 1>>();
  const RequestPtr request = session.make_request(*byte, byte);
  request->device = record.server_device;
  request->storage = record.name;
  wire::Read read;
  read.request = request->id;
  read.storage = record.name;
  read.spec.dtype = *marshal::to_wire(at::kByte);
  read.spec.sizes = {1};
  read.spec.strides = {1};
  const CallSite site{current_line(), record.server_device};
  try {
    Submission at(session);
    at.announce(record, site);
    encode(at.writer(), read);
  } catch (...) {
    session.requests().forget(*request);
    throw;
  }
  session.wait_quietly(request, "memory");
  if (!request->failed)
    return;
  wire::Error& error = request->error;
  const bool is_shortage = error.kind == wire::ErrorKind::kOutOfMemory;
  if (error.thread == 0) {  // no call that has stopped a thread is the cause
    error.operator_name = "aten::empty";
    request->is_of_this_call = is_shortage;
  }
  if (is_shortage && MemoryHistory::is_needed())
    MemoryHistory::instance().note_out_of_memory(&session, request->device, error, site.line);
  session.raise_failed(*request);
}

wire::Telemetry device_telemetry(Session& session, uint8_t device) {
  TORCH_CHECK_NOT_IMPLEMENTED((session.welcome().capabilities & wire::kTelemetryCapability) != 0,
                              "the server of ", session.describe(device),
                              " is older than this client and tells no NVML figures; update it");
  const auto body =
      session.query(wire::QueryKind::kTelemetry, "NVML figures",
                    [&](wire::Writer& writer) { wire::encode_telemetry_query(writer, device); });
  wire::Telemetry telemetry = decode_answer(session, body, wire::decode_telemetry);
  TORCH_CHECK(telemetry.reason.empty(), session.describe(device),
              " has no NVML figures: ", telemetry.reason);
  return telemetry;
}

}  // namespace torch_remote::client
