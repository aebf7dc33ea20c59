// How failed calls are reported to threads: Note [Fail-stop] in wire/messages.h.
#include <algorithm>

#include <ATen/SparseTensorImpl.h>

#include "client/process/errors.h"
#include "client/process/memory_history.h"
#include "client/process/recording.h"
#include "client/process/records.h"
#include "client/session/pending.h"
#include "client/session/submission.h"

namespace torch_remote::client {
namespace {

std::string describe_discarded(uint64_t calls) {
  if (calls == 0)
    return {};
  return "\n(" + std::to_string(calls) +
         (calls == 1 ? " later call of this thread was discarded)"
                     : " later calls of this thread were discarded)");
}

}  // namespace

bool Uses::any_of(const std::vector<uint64_t>& names) const {
  if (is_failed_call)
    return true;
  const auto is_named = [&](uint64_t name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (capture == nullptr)
    return is_named(storage);
  return std::ranges::any_of(capture->tensors(),
                             [&](const TensorSlot& slot) { return is_named(slot.record->name); });
}

// Reader thread. Wakes threads that wait for credit, which then raise.
void Session::note_failure(const wire::Error& error) {
  faults_.add({error, site_of(error)});
  requests_.wake();
}

void Session::raise_known_failure(const Uses& uses) {
  if (const auto failure = faults_.take(current_thread()))
    raise_failure(*failure, uses);
  for (const uint64_t thread : faults_.take_ended()) {
    if (link_.is_lost())
      return;
    Submission at(*this, IfLost::kWrite);
    wire::encode_go_on(at.writer(), thread);
  }
}

void Session::raise_failed(const Request& request, const Capture* used) {
  const wire::Error& error = request.error;
  const Uses uses{used, request.storage};
  if (error.call != 0) {
    // The server reports a failure before it answers. With KeepGil PyTorch holds a lock, and
    // telling runs Python, so the thread's next call tells.
    if (!KeepGil::is_kept())
      raise_known_failure(uses);
    faults_.note_raised(error);
  }
  raise_remote(error, describe(error, faults_.site_of(error.call), request.device),
               {uses.any_of(error.results), request.is_of_this_call});
}

void Session::raise_failure(const Failure& failure, const Uses& uses) {
  const wire::Error& error = failure.error;
  const uint64_t discarded = go_on_after(failure);
  std::string text = describe(error, failure.site, 0) + describe_discarded(discarded);
  if (owner_ != nullptr && owner_->has_others(this))
    text += "\n(what this thread did on other machines meanwhile stays done)";
  raise_remote(error, text, {.is_local = uses.any_of(error.results)});
}

uint64_t Session::go_on_after(const Failure& failure) {
  const wire::Error& error = failure.error;
  if (error.signature != 0)
    order_.with_signatures([&](SignatureTable& table) { table.mark_failed(error.signature - 1); });
  uint64_t last = 0;
  if (!link_.is_lost()) {
    Submission at(*this, IfLost::kWrite);
    wire::encode_go_on(at.writer(), error.thread);
    last = at.last_call();
  }
  faults_.add_discarded({error.call, error.since, last, requests_.next_id()});
  if (error.kind == wire::ErrorKind::kOutOfMemory && MemoryHistory::is_needed()) {
    const CallSite site = failure.site.value_or(CallSite{});
    MemoryHistory::instance().note_out_of_memory(this, site.device, error, site.line);
  }
  PendingDownloads::instance().forget_cause(*this, error.call, nullptr);
  try {
    if (python_hooks.take_back != nullptr)
      python_hooks.take_back(*this, error.since);
  } catch (...) {  // Ctrl-C is raised instead
    faults_.keep_unreported(failure);
    throw;
  }
  faults_.note_raised(error);
  return order_.count_calls(error.since, last, error.thread);
}

void Session::cancel() {
  check_not_recording("cancel");
  TORCH_CHECK_NOT_IMPLEMENTED((welcome().capabilities & wire::kCancelCapability) != 0,
                              "cancel() on ", describe(0),
                              ": this server does not drop calls; update it");
  {
    Submission at(*this);
    at.cut_frame();
    wire::encode_cancel(at.writer(), at.last_call());
    at.cut_frame();
  }
  query(wire::QueryKind::kBarrier, "cancel");
  const auto failure = faults_.take(current_thread());
  if (!failure.has_value())
    return;
  if (failure->error.kind != wire::ErrorKind::kCancelled)
    raise_failure(*failure, {});
  go_on_after(*failure);
}

std::string Session::describe(const wire::Error& error, std::optional<CallSite> site,
                              uint8_t device) {
  if (!site.has_value() && error.call != 0)
    site = site_of(error);
  const CallSite found = site.value_or(CallSite{0, device});
  return error.operator_name + " on " + describe(found.device) + describe_line(found.line) +
         describe_run(error) + ": " + error.message;
}

// The line of a program's call is where it was recorded.
std::optional<CallSite> Session::site_of(const wire::Error& error) {
  return error.program == 0 ? order_.site_of(error.call)
                            : order_.program_sites().find(error.program, error.step);
}

std::string Session::describe_run(const wire::Error& error) {
  if (error.program == 0)
    return {};
  const CallSite run = order_.site_of(error.call).value_or(CallSite{});
  const std::string line = name_line(run.line);
  return line.empty() ? " in a graph" : " in a graph replayed at " + line;
}

// --- what is missing

bool may_be_missing(Faults& faults, const Capture& capture) {
  if (!faults.has_discarded()) [[likely]]
    return false;
  return std::ranges::any_of(capture.tensors(), [&](const TensorSlot& slot) {
    return faults.may_be_discarded(slot.record->made_by.load(std::memory_order_relaxed));
  });
}

void note_not_missing(const Capture& capture) {
  for (const TensorSlot& slot : capture.tensors())
    slot.record->made_by.store(0, std::memory_order_relaxed);
}

bool is_missing(Session& session, const at::Tensor& tensor, uint64_t since) {
  if (tensor.is_sparse() && !tensor.key_set().has(c10::DispatchKey::Python)) {
    const auto& sparse = *static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    return is_missing(session, sparse.values(), since) ||
           is_missing(session, sparse.indices(), since);
  }
  const StorageRecord* const record = own_record(*tensor.unsafeGetTensorImpl());
  if (record == nullptr || session_of(*record) != &session)
    return false;
  const uint64_t call = record->made_by.load(std::memory_order_relaxed);
  return call != 0 && call >= since &&
         record->made_in.load(std::memory_order_relaxed) == static_cast<uint32_t>(current_thread());
}

// --- synchronize

void Session::synchronize(const Uses& uses) {
  check_not_recording("synchronize");
  const auto pending = PendingDownloads::instance().of(*this);
  finish_uploads(*this, requests_.next_id());
  query(wire::QueryKind::kBarrier, "synchronize");
  for (const auto& request : pending)
    wait_until([&] { return request->done.load(); }, "a download");
  SentSources::instance().free_done();
  show_all_warnings(*this);
  raise_own_failure(uses);
  if (const auto download = find_failed_download()) {
    PendingDownloads::instance().forget_cause(*this, download->error.call, download.get());
    raise_failed(*download);
  }
  uint64_t others = 0;
  const auto failure = faults_.raise_oldest(others);
  if (!failure.has_value())
    return;
  std::string text = describe(failure->error, failure->site, 0);
  if (others != 0)
    text += "\n(calls of " + std::to_string(others) +
            (others == 1 ? " more thread" : " more threads") +
            " failed; each later synchronize() raises one of them)";
  raise_remote(failure->error, text, {});
}

void finish_uploads(Session& session, uint64_t before) {
  for (const auto& request : session.requests().uploads_before(before))
    session.wait_until([&] { return request->done.load(); }, "an upload");
}

RequestPtr Session::find_failed_download() {
  for (const auto& request : PendingDownloads::instance().of(*this))
    if (request->done && request->failed && !faults_.was_reported(*request))
      return request;
  return nullptr;
}

}  // namespace torch_remote::client
