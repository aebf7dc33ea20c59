#include "client/memory/telemetry.h"

#include <c10/util/Exception.h>

#include "client/session/answers.h"

namespace torch_remote::client {

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
