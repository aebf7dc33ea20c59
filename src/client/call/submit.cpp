#include "client/call/submit.h"

#include <c10/util/Exception.h>

#include "base/error.h"
#include "client/call/results.h"
#include "client/process/memory_history.h"
#include "client/session/match.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "wire/messages.h"

namespace torch_remote::client {
namespace {

// Throws the exception of the local operator: same type, same text.
[[noreturn]] void raise_as_local(const wire::Error& error) {
  switch (error.kind) {
    case wire::ErrorKind::kIndex:
      TORCH_CHECK_INDEX(false, error.message);
    case wire::ErrorKind::kValue:
      TORCH_CHECK_VALUE(false, error.message);
    case wire::ErrorKind::kType:
      TORCH_CHECK_TYPE(false, error.message);
    case wire::ErrorKind::kNotImplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, error.message);
    case wire::ErrorKind::kLinalg:
      TORCH_CHECK_LINALG(false, error.message);
    case wire::ErrorKind::kOutOfMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.message);
    case wire::ErrorKind::kAccelerator:
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 0,
                                  error.message);
    default:
      TORCH_CHECK(false, error.message);
  }
}

// PyTorch runs a copy between two devices on the current stream of its source.
void use_current_streams(Submission& at, const Capture& capture) {
  for (const TensorSlot& slot : capture.tensors())
    at.use_current_stream(slot.record->server_device);
}

// What precedes a call: SIGNATURE, CONTEXT and STREAM if they are new. False: nothing is written,
// and the call must be captured again.
bool prepare(Submission& at, SignaturePtr& signature, const Capture& capture,
             c10::ArrayRef<c10::IValue> arguments, bool outputs_known) {
  if (!capture.is_current())
    return false;
  if (signature->index == Signature::kNotOnWire)
    signature = at.signatures().add(signature);
  if (signature->outputs_known != outputs_known)
    return false;  // another thread has added it, or has learned its outputs
  if (!signature->announced)
    at.announce(*signature, signature->match == nullptr
                                ? std::vector<uint32_t>()
                                : defaults_of(*signature->operation, arguments));
  at.mirror_context();
  if (are_streams_used() && signature->operation->has(kSpansDevices)) [[unlikely]]
    use_current_streams(at, capture);
  return true;
}

// A value that is missing is an earlier call's error; this one's own reads as it would locally.
[[noreturn]] void raise_outcome(Session& session, const Request& request, const Capture& capture) {
  const wire::Error& error = request.error;
  const bool is_shortage = error.kind == wire::ErrorKind::kOutOfMemory;
  if (error.call == request.call && is_shortage && MemoryHistory::is_needed())
    MemoryHistory::instance().note_out_of_memory(&session, request.device, error, 0);
  if (error.call != request.call || is_shortage)  // which says where the memory is short
    session.raise_failed(request, &capture);
  raise_as_local(error);
}

}  // namespace

bool send_call(Session& session, SignaturePtr& signature, const Capture& capture, Outputs& outputs,
               c10::ArrayRef<c10::IValue> arguments, CallSite site, Request* outcome) {
  Submission at(session);
  if (!prepare(at, signature, capture, arguments, true))
    return false;
  const auto [call, thread] = at.number_call(site);
  const auto write_slots = [&, call = call, thread = thread] {
    capture.encode_slots(at.writer(), at.names());
    outputs.encode_names(at.writer(), at.names(), call, thread);
  };
  if (outcome == nullptr) {
    wire::encode_call(at.writer(), signature->index, write_slots);
  } else {
    outcome->call = call;
    wire::encode_checked_call(at.writer(), outcome->id, signature->index, write_slots);
  }
  capture.mark_announced(call, thread);
  return true;
}

void wait_for_outcome(Session& session, const OperatorInfo& info, Signature& signature,
                      const Capture& capture, const std::shared_ptr<Request>& outcome) {
  session.wait_quietly(outcome, info.name.c_str());
  if (outcome->failed)
    raise_outcome(session, *outcome, capture);
  note_not_missing(capture);
  signature.is_doubted = false;
}

std::optional<Results> query_call(Session& session, const OperatorInfo& info,
                                  SignaturePtr signature, const Capture& capture,
                                  c10::ArrayRef<c10::IValue> arguments, c10::Device device,
                                  DevicePlace place) {
  const auto request = session.make_request({}, nullptr);
  request->device = place.device;
  const uint64_t names = names_for(info, capture);
  const uint64_t first = session.order().new_names().storages(names);
  request->first_name = first;
  request->names = names;
  const CallSite site{current_line(), place.device, info.site_number};
  bool sent = false;
  {
    Submission at(session);
    sent = prepare(at, signature, capture, arguments, false);
    if (sent) {
      request->call = at.number_call(site).call;
      wire::encode_queried_call(at.writer(), request->id, {signature->index, first, names},
                                [&] { capture.encode_slots(at.writer(), at.names()); });
      capture.mark_announced(0, 0);  // it is waited for
    }
  }
  if (!sent) {
    session.requests().forget(*request);
    return std::nullopt;
  }
  session.wait_quietly(request, info.name.c_str());
  if (request->failed)
    raise_outcome(session, *request, capture);
  try {
    return take_results({info, *signature, capture, arguments, device, place, first},
                        request->results);
  } catch (const ProtocolError& error) {
    refuse_answer(session, error);
  }
}

}  // namespace torch_remote::client
