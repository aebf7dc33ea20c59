// Figures that a client asks for: counters, memory, NVML's, and the times of calls.
#include "server/device/nvml.h"
#include "server/executor/memory.h"
#include "server/handlers/all_handlers.h"
#include "server/handlers/session_state.h"

namespace torch_remote::server {
namespace {

class FigureHandler : public Handler {
 public:
  FigureHandler(SessionState& session, HandlerTable& table) : session_(session) {
    table.add<&FigureHandler::query_counters>(wire::QueryKind::kCounters, *this);
    table.add<&FigureHandler::query_memory>(wire::QueryKind::kMemory, *this);
    table.add<&FigureHandler::query_telemetry>(wire::QueryKind::kTelemetry, *this);
    table.add<&FigureHandler::query_profile>(wire::QueryKind::kProfile, *this);
  }

 private:
  void query_counters(uint64_t request, wire::Reader& reader);
  void query_memory(uint64_t request, wire::Reader& reader);
  void query_telemetry(uint64_t request, wire::Reader& reader);
  void query_profile(uint64_t request, wire::Reader& reader);

  SessionState& session_;
};

void FigureHandler::query_counters(uint64_t request, wire::Reader& /*reader*/) {
  answer_with(session_.replies, request,
              [&](wire::Writer& body) { wire::encode(body, session_.counters()); });
}

void FigureHandler::query_memory(uint64_t request, wire::Reader& reader) {
  const wire::MemoryQuery query = wire::decode_memory_query(reader);
  try {
    if (query.action == wire::MemoryAction::kEmptyCache) {
      session_.device_reads.empty_cache();
      session_.uploads.memory().empty();
    }
    answer_with(session_.replies, request, [&](wire::Writer& body) {
      wire::encode(body, device_memory(session_.devices, session_.storages, query));
    });
  } catch (...) {
    answer_failure(session_.replies, request, std::current_exception(), "memory");
  }
}

void FigureHandler::query_telemetry(uint64_t request, wire::Reader& reader) {
  const c10::Device device = session_.devices.device(wire::decode_telemetry_query(reader));
  wire::Telemetry telemetry;
  if (device.is_cuda())
    telemetry = cuda_telemetry(device.index());
  else
    telemetry.reason = "it is a CPU";
  answer_with(session_.replies, request,
              [&](wire::Writer& body) { wire::encode(body, telemetry); });
}

void FigureHandler::query_profile(uint64_t request, wire::Reader& reader) {
  const wire::ProfileAction action = wire::decode_profile_query(reader);
  CallProfile& profile = session_.profile;
  wire::Writer body;
  try {
    if (action == wire::ProfileAction::kStart)
      profile.start();
    if (action == wire::ProfileAction::kTake)
      wire::encode(body, profile.take());
    else
      wire::encode_clock(body, CallProfile::now());
  } catch (...) {
    return answer_failure(session_.replies, request, std::current_exception(), "profile");
  }
  session_.replies.reply(request, body.view());
}

}  // namespace

std::unique_ptr<Handler> make_figure_handler(SessionState& session, HandlerTable& table) {
  return std::make_unique<FigureHandler>(session, table);
}

}  // namespace torch_remote::server
