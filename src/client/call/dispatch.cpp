#include "client/call/dispatch.h"

#include <algorithm>
#include <numeric>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "client/call/overlaps.h"
#include "client/call/submit.h"
#include "client/machines/machines.h"
#include "client/memory/memory_figures.h"
#include "client/memory/server_branch.h"
#include "client/memory/storage.h"
#include "client/operators/operator.h"
#include "client/process/context.h"
#include "client/process/current_device.h"
#include "client/process/process.h"
#include "client/programs/recorder.h"
#include "client/session/match.h"
#include "client/session/submission.h"
#include "client/shapes/infer.h"

namespace torch_remote::client {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

// The capture of one call. Inference may dispatch again on the same thread: one for each depth.
class CaptureScope {
 public:
  CaptureScope() {
    if (pool().size() == depth())
      pool().push_back(std::make_unique<Capture>());
    capture_ = pool()[depth()++].get();
  }

  ~CaptureScope() { --depth(); }

  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

  Capture& operator*() { return *capture_; }

 private:
  static std::vector<std::unique_ptr<Capture>>& pool() {
    thread_local std::vector<std::unique_ptr<Capture>> captures;
    return captures;
  }

  static size_t& depth() {
    thread_local size_t value = 0;
    return value;
  }

  Capture* capture_;
};

void capture_call(Capture& capture, const OperatorInfo& info, Arguments arguments,
                  bool is_recorded) {
  uint8_t environment = read_environment();
  if (C10_UNLIKELY(info.has(kLooksAtGradMode)) && at::GradMode::is_enabled())
    environment |= kGradModeBit;
  capture.begin(info.id, info.name.c_str(), environment, arguments, info.has(kSpansDevices),
                is_recorded);
  for (size_t i = 0; i < arguments.size(); ++i)
    capture.add(info.arguments[i], arguments[i]);
  capture.finish();
}

// The session and the server's device a call is for.
DevicePlace place_of(const Capture& capture, c10::DeviceIndex index) {
  if (const StorageRecord* record = capture.any_record())
    return {session_of(*record), record->server_device};
  return Machines::instance().place(index);
}

void replace_stack(torch::jit::Stack* stack, size_t arguments, Results& results) {
  torch::jit::drop(*stack, arguments);
  for (c10::IValue& result : results)
    stack->push_back(std::move(result));
}

// Logs where a call went and why, for TORCH_REMOTE_LOG=debug.
void log_route(const OperatorInfo& info, const char* where, const char* why) {
  if (!log_enabled(LogLevel::kDebug))
    return;
  log(LogLevel::kDebug, "call", {{"operator", info.name}, {"ran", where}, {"why", why}});
}

bool mixes_dtypes(Arguments arguments) {
  std::optional<at::ScalarType> first;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined())
      continue;
    const at::ScalarType dtype = argument.toTensor().scalar_type();
    if (first.value_or(dtype) != dtype)
      return true;
    first = dtype;
  }
  return false;
}

SignaturePtr make_signature(const OperatorInfo& info, const Capture& capture, Arguments arguments,
                            uint64_t hash, Inference inference) {
  auto signature = c10::make_intrusive<Signature>();
  signature->key.assign(capture.key().begin(), capture.key().end());
  signature->hash = hash;
  signature->operation = &info;
  signature->outputs_known = inference.result == Inferred::kKnown;
  signature->outputs = std::move(inference.outputs);
  if (capture.sparse().empty()) {  // others have no storage that could overlap
    const Overlaps overlaps = find_overlaps(info, arguments);
    signature->shares_storage = overlaps.shares_storage;
    signature->is_doubted = overlaps.may_be_refused;
  }
  if (info.has(kWantsOneDtype) && mixes_dtypes(arguments))
    signature->is_doubted = true;
  finish_signature(*signature);
  return signature;
}

// Whether an index must be uploaded first. Raises what PyTorch raises before it reads values.
bool check_index(const c10::IValue& index, c10::Device indexed) {
  if (!index.isTensor() || !index.toTensor().defined())
    return false;
  const at::Tensor& tensor = index.toTensor();
  TORCH_CHECK(tensor.device().is_cpu() || tensor.device() == indexed,
              "indices should be either on ", at::kCPU,
              " or on the same device as the indexed tensor (", indexed, ")");
  return tensor.device().is_cpu() && tensor.dim() > 0;
}

// CUDA accepts index tensors on the CPU. We upload them first.
void prepare_indices(torch::jit::Stack* stack, size_t arguments) {
  const c10::Device indexed = torch::jit::last(*stack, arguments)[0].toTensor().device();
  for (size_t i = stack->size() - arguments; i < stack->size(); ++i) {
    if (!(*stack)[i].isOptionalTensorList())
      continue;
    bool are_on_host = false;
    for (const c10::IValue& item : (*stack)[i].toListRef())
      are_on_host |= check_index(item, indexed);
    if (!are_on_host)
      continue;
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : (*stack)[i].toListRef())
      list.push_back(item.isTensor() && item.toTensor().defined() ? item.toTensor().to(indexed)
                                                                  : std::optional<at::Tensor>());
    (*stack)[i] = std::move(list);
  }
}

void alert_if_not_deterministic(const OperatorInfo& info, Arguments arguments) {
  if (!at::globalContext().deterministicAlgorithms())
    return;
  const bool is_cuda = is_on_cuda_server(arguments[0].toTensor());
  if (info.alert->concerns(arguments, is_cuda))
    at::globalContext().alertNotDeterministic(info.alert->caller);
}

// What few operators need before their calls are sent.
void prepare(const OperatorInfo& info, torch::jit::Stack* stack) {
  if (info.has(kTakesHostIndices))
    prepare_indices(stack, info.arguments.size());
  if (C10_UNLIKELY(info.has(kMayAlert)))
    alert_if_not_deterministic(info, torch::jit::last(*stack, info.arguments.size()));
}

// Locally a _foreach operator writes each tensor by an operator that bumps its version. PyTorch has
// no kernel that does so for a list.
void bump_versions(const c10::IValue& list) {
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView))
    return;
  for (const c10::IValue& item : list.toListRef())
    item.toTensor().unsafeGetTensorImpl()->bump_version();
}

// Only for other libraries' operators: kernels/views.cpp has PyTorch's own views.
[[noreturn]] void refuse_view(const OperatorInfo& info) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, info.name,
      ": returns a view of its argument, and torch_remote makes views on the client, where it "
      "knows only PyTorch's own; call it on tensor.cpu(), or make the view with "
      "PyTorch's operators (view, as_strided, ...)");
}

enum class Attempt { kDone, kAgain };

// Of sparse tensors only the server knows the results, but for `dense.add_(sparse)`, by which
// optimizers apply sparse gradients, where nothing can be wrong with the call.
Inference infer_sparse(const OperatorInfo& info, Arguments arguments, const Capture& capture) {
  if (!info.has(kAddsSparse))
    return {};
  const at::Tensor& self = arguments[0].toTensor();
  const at::Tensor& other = arguments[1].toTensor();
  const bool is_float = self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble;
  if (self.layout() != at::kStrided || !other.is_sparse() || !is_float ||
      self.scalar_type() != other.scalar_type() || self.sizes() != other.sizes())
    return {};
  wire::Output output;
  output.kind = wire::OutputKind::kTensor;
  output.tensor = static_cast<uint64_t>(
      std::find(capture.impls().begin(), capture.impls().end(), self.unsafeGetTensorImpl()) -
      capture.impls().begin());
  return {Inferred::kKnown, {output}, InferenceSource::kArguments};
}

// A server of an earlier build does not know sparse tensors.
void check_knows_sparse(const OperatorInfo& info, Session& session) {
  TORCH_CHECK_NOT_IMPLEMENTED((session.welcome().capabilities & wire::kSparseCapability) != 0,
                              info.name, " on ", session.describe(0),
                              ": this server does not take sparse tensors; update it, or keep the "
                              "tensor on the CPU (.cpu()) or dense (.to_dense())");
}

// The server runs the call and tells its outputs, and how it resized `out=` tensors.
Attempt ask_server(const OperatorInfo& info, SignaturePtr signature, const Capture& capture,
                   torch::jit::Stack* stack, c10::Device device, DevicePlace place) {
  const size_t count = info.arguments.size();
  log_route(
      info, "server, waited for",
      info.depends_on_data ? "its result depends on data" : "no kernel here knows its result");
  if (!info.depends_on_data)
    ++place.session->order().counters().inferred_by_server;
  std::optional<Results> results = query_call(*place.session, info, std::move(signature), capture,
                                              torch::jit::last(*stack, count), device, place);
  if (!results.has_value())
    return Attempt::kAgain;
  replace_stack(stack, count, *results);
  return Attempt::kDone;
}

// Whether to wait for the outcome, so that the call itself raises: because the user asked for that,
// or a kernel may refuse it.
bool must_tell_outcome(const OperatorInfo& info, Arguments arguments, const Signature& signature) {
  if (signature.is_doubted.load(std::memory_order_relaxed) || info.has(kChecksValues) ||
      is_blocking())
    return true;
  if (info.check_errors >= 0 && arguments[static_cast<size_t>(info.check_errors)].toBool())
    return true;
  return signature.shares_storage && overlaps_in_part(info, arguments);
}

std::shared_ptr<Request> ask_for_outcome(const DevicePlace& place) {
  auto request = place.session->make_request({}, nullptr);
  request->device = place.device;
  return request;
}

// A storage gets its memory on the stream that was current when it was made. Where that is another
// than the call's, the server is told before the call. True: it was, and the key has changed.
bool announce_elsewhere(Session& session, const Capture& capture) {
  bool has_announced = false;
  for (const TensorSlot& slot : capture.tensors()) {
    StorageRecord& record = *slot.record;
    const c10::DeviceIndex index = session.order().index_of(record.server_device);
    if (record.announced.load(std::memory_order_relaxed) || record.stream == current_stream(index))
      continue;
    const CallSite site{current_line(), record.server_device};
    Submission(session).announce(record, site);
    has_announced = true;
  }
  return has_announced;
}

// While the thread captures a graph: keeps the call, and does not send it.
Attempt record(Recording& recording, const OperatorInfo& info, SignaturePtr signature,
               const Capture& capture, torch::jit::Stack* stack, c10::Device device,
               DevicePlace place) {
  if (!signature->outputs_known)
    refuse_while_recording(recording, info.name.c_str());
  place.session->raise_own_failure({&capture});
  const size_t count = info.arguments.size();
  Outputs outputs(*signature, capture, device, place);
  const CallSite site{current_line(), place.device, info.site_number};
  static_cast<Recorder&>(recording).add({*place.session, std::move(signature), capture,
                                         torch::jit::last(*stack, count), outputs.results(), site});
  log_route(info, "server", "recorded");
  replace_stack(stack, count, outputs.results());
  return Attempt::kDone;
}

Attempt try_once(const OperatorInfo& info, torch::jit::Stack* stack) {
  CaptureScope scope;
  Capture& capture = *scope;
  const size_t count = info.arguments.size();
  const Arguments arguments = torch::jit::last(*stack, count);
  Recording* const recording = current_recording();
  capture_call(capture, info, arguments, recording != nullptr);
  const c10::DeviceIndex index = capture.device() < 0 ? current_device() : capture.device();
  const DevicePlace place = place_of(capture, index);
  const c10::Device device(c10::kPrivateUse1, index);
  capture.set_server_device(place.device);
  if (C10_UNLIKELY(are_streams_used()) && recording == nullptr &&
      announce_elsewhere(*place.session, capture))
    return Attempt::kAgain;
  const uint64_t hash = hash_bytes(capture.key());
  SignaturePtr signature = place.session->order().with_signatures(
      [&](SignatureTable& table) { return table.find(hash, capture.key()); });
  if (!signature) {
    const OperatorMatch* match = match_operator(*place.session, info);
    if (C10_UNLIKELY(!capture.sparse().empty()))
      check_knows_sparse(info, *place.session);
    Inference inference = capture.sparse().empty() ? infer(info, arguments, capture.impls())
                                                   : infer_sparse(info, arguments, capture);
    if (inference.result == Inferred::kResized)
      return Attempt::kAgain;
    if (inference.by == InferenceSource::kPython)
      ++place.session->order().counters().inferred_by_meta;
    if (log_enabled(LogLevel::kDebug))
      log(LogLevel::kDebug, "new signature",
          {{"operator", info.name}, {"told_by", std::string(word(inference.by))}});
    signature = make_signature(info, capture, arguments, hash, std::move(inference));
    signature->match = match;
  }
  if (C10_UNLIKELY(signature->match != nullptr))
    check_match(*signature->match, info, arguments, *place.session);
  if (C10_UNLIKELY(recording != nullptr))
    return record(*recording, info, std::move(signature), capture, stack, device, place);
  place.session->begin_call({&capture});
  if (!signature->outputs_known)
    return ask_server(info, std::move(signature), capture, stack, device, place);
  Outputs outputs(*signature, capture, device, place);
  const bool is_scarce = may_not_fit(*place.session, place.device);
  if (C10_UNLIKELY(is_scarce)) {
    const auto& sizes = signature->output_bytes;
    check_memory_limit(*place.session, place.device,
                       std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}),
                       /*is_counted=*/true);
  }
  const bool waits = is_scarce || must_tell_outcome(info, arguments, *signature) ||
                     may_be_missing(place.session->faults(), capture);
  const std::shared_ptr<Request> outcome = waits ? ask_for_outcome(place) : nullptr;
  if (!send_call(*place.session, signature, capture, outputs, arguments,
                 {current_line(), place.device, info.site_number}, outcome.get())) {
    if (outcome != nullptr)
      place.session->requests().forget(*outcome);
    return Attempt::kAgain;
  }
  log_route(info, "server", "streamed");
  replace_stack(stack, count, outputs.results());
  if (C10_UNLIKELY(outcome != nullptr))
    wait_for_outcome(*place.session, info, *signature, capture, outcome);
  return Attempt::kDone;
}

}  // namespace

void dispatch(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(in_forked_child()))
    refuse_in_forked_child();
  const OperatorInfo& info = operator_info(operation);
  if (C10_UNLIKELY(info.makes_view))
    refuse_view(info);
  if (info.has(kTakesHostIndices | kMayAlert))
    prepare(info, stack);
  c10::IValue written;
  if (C10_UNLIKELY(info.writes_list))
    written = torch::jit::last(*stack, info.arguments.size())[0];
  while (try_once(info, stack) == Attempt::kAgain) {
  }
  if (C10_UNLIKELY(info.writes_list))
    bump_versions(written);
  // PyTorch, once this returns, would take the GIL: Note [The GIL at exit].
  if (C10_UNLIKELY(is_exiting()))
    park_if_exiting();
}

}  // namespace torch_remote::client
