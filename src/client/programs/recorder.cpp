#include "client/programs/recorder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/operators/operator.h"
#include "client/process/records.h"
#include "client/session/match.h"

namespace torch_remote::client {
namespace {

constexpr int kCaptureInvalidated = 901;  // cudaErrorStreamCaptureInvalidated

// More bytes of slots would not fit what a session's server keeps: SentPrograms.
constexpr uint64_t kMostSlotBytes = 8 << 20;

}  // namespace

uint32_t Recorder::number_of(const c10::TensorImpl& tensor, StorageRecord& record) {
  const auto [place, is_new] =
      numbers_of_names_.emplace(record.name, static_cast<uint32_t>(storages_.size()));
  if (is_new) {
    TORCH_CHECK(storages_.size() < wire::kMaxProgramStorages, "a graph uses more than ",
                wire::kMaxProgramStorages, " storages");
    storages_.push_back({.record = &record, .device = record.server_device});
  }
  Mentioned& known = storages_[place->second];
  const uint64_t nbytes = record.nbytes.load(std::memory_order_relaxed);
  if (known.is_made && nbytes > known.nbytes)
    refuse_while_recording(*this, "a larger size of a tensor that a call of the graph makes");
  known.nbytes = std::max(known.nbytes, nbytes);
  if (known.held)
    return place->second;
  const c10::Storage& storage = tensor.unsafe_storage();
  if (record.announced.load(std::memory_order_relaxed))
    known.held = storage;  // or the server could be told to free it
  else if (!known.seen || known.seen->lock().get() != storage.unsafeGetStorageImpl())
    known.seen = storage.getWeakStorageImpl();
  return place->second;
}

void Recorder::add_settings(CallSite site) {
  const wire::Context* const changes = settings_.changes();
  if (changes == nullptr)
    return;
  recorded_.steps.push_back({.signature = {}, .settings = *changes});
  recorded_.sites.push_back({site.line, site.device});
}

void Recorder::add_fresh(const wire::Output& output, const c10::IValue& result) {
  if (output.kind == wire::OutputKind::kFresh) {
    const c10::TensorImpl& tensor = *result.toTensor().unsafeGetTensorImpl();
    StorageRecord& record = *record_of(tensor);
    const uint32_t number = number_of(tensor, record);
    storages_[number].is_made = true;
    record.made_by.store(0, std::memory_order_relaxed);  // no call that was sent makes it
    return wire::encode_name(recorded_.slots, numbers_, number);
  }
  if (output.kind != wire::OutputKind::kList)
    return;
  for (size_t i = 0; i < output.items.size(); ++i)
    add_fresh(output.items[i], result.toListRef()[i]);
}

void Recorder::keep_generators(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments)
    if (argument.isGenerator())
      recorded_.generators.push_back(argument.toGenerator());
}

void Recorder::note_written(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone())
    return;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const StorageRecord* const record = own_record(impl);
  if (record == nullptr || !impl.version_counter().enabled())
    return;
  const auto number = numbers_of_names_.find(record->name);
  const bool is_made = number != numbers_of_names_.end() && storages_[number->second].is_made;
  if (is_made || !known_written_.insert(&impl).second)
    return;
  written_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                      impl.version_counter(), impl.version_counter().current_version()});
}

// Autograd changes the version after the call.
void Recorder::note_written(const Call& call) {
  const auto& arguments = call.signature->operation->arguments;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_written)
      continue;
    const c10::IValue& value = call.arguments[i];
    if (value.isTensor())
      note_written(value.toTensor());
    else if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        note_written(tensor);
  }
}

void Recorder::check_size() {
  TORCH_CHECK(recorded_.steps.size() < wire::kMaxProgramSteps - 1, "a graph has more than ",
              wire::kMaxProgramSteps, " calls");
  TORCH_CHECK(recorded_.slots.size() < kMostSlotBytes, "a graph has more than ", kMostSlotBytes,
              " bytes of arguments");
}

void Recorder::add(const Call& call) {
  MutexLock lock(mutex_);
  try {
    add_step(call);
  } catch (const std::exception& error) {
    spoil(error.what());  // half of a step may be recorded
    throw;
  }
}

void Recorder::add_step(const Call& call) {
  check_size();
  TORCH_CHECK(recorded_.session == nullptr || recorded_.session == &call.session,
              "a graph's calls must be on one server; these are on two");
  if (recorded_.session == nullptr) {
    recorded_.session = &call.session;
    recorded_.device = call.site.device;
  }
  add_settings(call.site);
  const Capture& capture = call.capture;
  for (size_t i = 0; i < capture.tensors().size(); ++i)
    number_of(*capture.impls()[i], *capture.tensors()[i].record);
  keep_generators(call.arguments);
  note_written(call);
  ProgramStep step;
  step.signature = call.signature;
  if (call.signature->match != nullptr)
    step.defaults = defaults_of(*call.signature->operation, call.arguments);
  step.begin = recorded_.slots.size();
  Recorded* const recorded = &recorded_;
  const auto* const numbers = &numbers_of_names_;
  capture.encode_slots(recorded_.slots, numbers_, [=](const StorageRecord& record) {
    recorded->mentions.push_back(recorded->slots.size());
    return numbers->at(record.name);
  });
  step.outputs = recorded_.slots.size();
  for (size_t i = 0; i < call.results.size(); ++i)
    add_fresh(call.signature->outputs[i], call.results[i]);
  step.end = recorded_.slots.size();
  recorded_.steps.push_back(std::move(step));
  recorded_.sites.push_back(call.site);
}

// Tensors that share a counter: the first one changes it back, and the others find it unchanged.
std::vector<NewVersions> Recorder::take_versions() {
  MutexLock lock(mutex_);
  std::vector<NewVersions> changed;
  for (Written& written : written_) {
    const uint32_t now = written.counter.current_version();
    if (now <= written.version)
      continue;
    written.counter.set_version(written.version);
    changed.push_back({written.counter, now - written.version});
  }
  return changed;
}

std::optional<Recorded> Recorder::finish() {
  end_recording(*this);
  MutexLock lock(mutex_);
  if (const std::string error = spoiled_by(); !error.empty())
    throw c10::AcceleratorError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kCaptureInvalidated,
        "operation failed due to a previous error during capture: " + error);
  if (recorded_.session == nullptr)
    return std::nullopt;
  for (Mentioned& storage : storages_) {
    if (!storage.held && storage.seen)
      if (auto alive = storage.seen->lock())
        storage.held = c10::Storage(std::move(alive));
    if (!storage.held) {
      recorded_.storages.push_back({0, storage.device, storage.nbytes});
      continue;
    }
    const auto number = static_cast<uint32_t>(recorded_.storages.size());
    recorded_.storages.push_back({storage.record->name, 0, 0});
    recorded_.named.push_back({.number = number,
                               .record = storage.record,
                               .is_made = storage.is_made,
                               .storage = std::move(storage.held)});
  }
  return std::move(recorded_);
}

}  // namespace torch_remote::client
