#include "client/programs/function.h"

#include <algorithm>
#include <utility>

#include "client/machines/machines.h"
#include "client/memory/storage.h"
#include "client/process/records.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

wire::TensorSpec spec_of(const at::TensorImpl& tensor, bool conj, bool neg) {
  const auto dtype = marshal::to_wire(c10::typeMetaToScalarType(tensor.dtype()));
  TORCH_CHECK_NOT_IMPLEMENTED(dtype, "dtype ", tensor.dtype(),
                              " is not supported on a remote device");
  wire::TensorSpec spec{
      *dtype, conj, neg, tensor.is_wrapped_number(), tensor.sizes().vec(), tensor.strides().vec()};
  return spec;
}

bool is_strided_remote(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone() && tensor.layout() == at::kStrided;
}

bool looks_like(const at::Tensor& tensor, const wire::TensorSpec& spec) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.sizes().equals(spec.sizes) && impl.strides().equals(spec.strides) &&
         marshal::from_wire(spec.dtype) == c10::typeMetaToScalarType(impl.dtype()) &&
         tensor.is_conj() == spec.conj && tensor.is_neg() == spec.neg &&
         impl.is_wrapped_number() == spec.wrapped;
}

uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : 0;
}

// What the calls have added to an input's version, which becomes what it was: nothing has run.
uint32_t take_versions(const at::Tensor& tensor, uint32_t before) {
  const uint32_t more = version_of(tensor) - before;
  if (more == 0)
    return 0;
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();
  counter.set_version(before);
  return more;
}

}  // namespace

// --- made once

Function::Function(Recorded recorded, const Inputs& inputs, at::TensorList outputs)
    : session_(recorded.session),
      first_new_(inputs.first_new),
      may_move_(inputs.may_move),
      others_(inputs.others),
      program_([&] {
        for (size_t i = 0; i < inputs.tensors.size(); ++i)
          inputs_.push_back({view_of(inputs.tensors[i], Source::kInput), inputs.versions[i]});
        input_places_ = places_.size();
        for (size_t i = 0; i < outputs.size(); ++i)
          outputs_.push_back(describe(outputs[i], inputs.tensors, outputs.slice(0, i)));
        return take_named(std::move(recorded));
      }()) {
  known_ = {};
}

size_t Function::place_of(const at::Tensor& tensor, Source source) {
  StorageRecord* const record = record_of(tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(session_of(*record) == session_,
                              "a graph's tensors must be on one server; these are on two");
  const auto found = std::ranges::find(known_, record);
  if (found != known_.end())
    return static_cast<size_t>(found - known_.begin());
  known_.push_back(record);
  Place place;
  place.source = source;
  place.server_device = record->server_device;
  place.device = tensor.device();
  place.nbytes = record->nbytes.load();
  if (source == Source::kMade && record->name < first_new_) {
    place.source = Source::kKept;
    place.kept = tensor.storage();
  }
  places_.push_back(std::move(place));
  return places_.size() - 1;
}

Function::View Function::view_of(const at::Tensor& tensor, Source source) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const size_t place = place_of(tensor, source);
  return {spec_of(impl, tensor.is_conj(), tensor.is_neg()),
          static_cast<int64_t>(offset_of(impl, *known_[place])), place};
}

Function::Output Function::describe(const at::Tensor& output, at::TensorList inputs,
                                    at::TensorList earlier) {
  if (!output.defined())
    return {};
  TORCH_CHECK_NOT_IMPLEMENTED(is_strided_remote(output), "a result is ", output.toString(),
                              ", and no strided tensor of the server");
  const auto is_same = [&](const at::Tensor& other) { return output.is_same(other); };
  if (const auto at = std::ranges::find_if(inputs, is_same); at != inputs.end())
    return {Output::Kind::kInput, static_cast<size_t>(at - inputs.begin())};
  if (const auto at = std::ranges::find_if(earlier, is_same); at != earlier.end())
    return {Output::Kind::kEarlier, static_cast<size_t>(at - earlier.begin())};
  View view = view_of(output, Source::kMade);
  places_[view.storage].is_returned = true;
  return {Output::Kind::kNew, 0, std::move(view)};
}

Recorded Function::take_named(Recorded recorded) {
  std::erase_if(recorded.named, [&](const NamedStorage& storage) {
    const auto found = std::ranges::find(known_, storage.record);
    if (found == known_.end())
      return false;
    Place& place = places_[static_cast<size_t>(found - known_.begin())];
    place.number = storage.number;
    place.is_fresh = storage.is_made;
    return place.source != Source::kKept;
  });
  for (const NamedStorage& storage : recorded.named)
    if (storage.is_made)
      remade_.push_back(storage.record);
  return recorded;
}

// --- each run

int64_t Function::shift_of(const at::Tensor& tensor, const StorageRecord& record,
                           const View& view) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return (static_cast<int64_t>(offset_of(impl, record)) - view.offset) *
         static_cast<int64_t>(impl.itemsize());
}

std::optional<Function::AllBound> Function::match(at::TensorList inputs) const {
  if (inputs.size() != inputs_.size() || read_environment() != environment_ ||
      current_context() != settings_)
    return std::nullopt;
  AllBound bound(places_.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const View& view = inputs_[i].view;
    if (!is_strided_remote(inputs[i]))
      return std::nullopt;
    StorageRecord* const record = own_record(*inputs[i].unsafeGetTensorImpl());
    if (record == nullptr || !looks_like(inputs[i], view.spec))
      return std::nullopt;
    const int64_t shift = shift_of(inputs[i], *record, view);
    if (shift != 0 && !may_move_)
      return std::nullopt;
    Bound& known = bound[view.storage];
    if (known.record == nullptr)
      known = {record, shift};
    else if (known.record != record || known.shift != shift)
      return std::nullopt;
  }
  c10::SmallVector<StorageRecord*, 64> sorted;
  for (size_t i = 0; i < input_places_; ++i) {
    if (session_of(*bound[i].record) != &program_.session() ||
        bound[i].record->server_device != places_[i].server_device)
      return std::nullopt;
    if (std::ranges::find(remade_, bound[i].record) != remade_.end())
      return std::nullopt;
    sorted.push_back(bound[i].record);
  }
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end())
    return std::nullopt;
  return bound;
}

std::vector<at::Tensor> Function::make_outputs(at::TensorList inputs, AllBound& bound) const {
  c10::SmallVector<c10::Storage, 16> made(places_.size());
  c10::SmallVector<const at::Tensor*, 16> place_inputs(places_.size(), nullptr);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const size_t place = inputs_[i].view.storage;
    if (!places_[place].is_returned || place_inputs[place] != nullptr)
      continue;
    made[place] = inputs[i].storage();
    place_inputs[place] = &inputs[i];
  }
  for (size_t i = input_places_; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.source == Source::kKept) {
      made[i] = place.kept;
      continue;
    }
    bound[i].record = make_record(program_.session(), place.server_device, place.device.index(),
                                  place.nbytes, 0, place.is_fresh ? RecordPool::kToBeWritten : 0);
    made[i] = storage_on(bound[i].record, place.nbytes, place.device);
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(outputs_.size());
  for (const Output& output : outputs_) {
    switch (output.kind) {
      case Output::Kind::kUndefined:
        outputs.emplace_back();
        break;
      case Output::Kind::kInput:
        outputs.push_back(inputs[output.index]);
        break;
      case Output::Kind::kEarlier:
        outputs.push_back(outputs[output.index]);
        break;
      case Output::Kind::kNew: {
        const View& view = output.view;
        outputs.push_back(tensor_on(made[view.storage], view.spec));
        c10::TensorImpl& impl = *outputs.back().unsafeGetTensorImpl();
        impl.set_storage_offset(view.offset +
                                bound[view.storage].shift / static_cast<int64_t>(impl.itemsize()));
        if (const at::Tensor* const base = place_inputs[view.storage])
          impl.set_version_counter(base->unsafeGetTensorImpl()->version_counter());
        break;
      }
    }
  }
  return outputs;
}

std::optional<std::vector<at::Tensor>> Function::run(at::TensorList inputs) {
  std::optional<AllBound> bound = match(inputs);
  if (!bound)
    return std::nullopt;
  program_.prepare_run();
  std::vector<at::Tensor> outputs = make_outputs(inputs, *bound);
  c10::SmallVector<NamedStorage, 64> changed;
  for (size_t i = 0; i < places_.size(); ++i)
    if (places_[i].number && places_[i].source != Source::kKept)
      changed.push_back(
          {*places_[i].number, (*bound)[i].record, places_[i].is_fresh, (*bound)[i].shift});
  for (size_t i = 0; i < inputs.size(); ++i)
    for (uint32_t more = inputs_[i].versions; more != 0; --more)
      inputs[i].unsafeGetTensorImpl()->bump_version();
  for (NewVersions& other : others_)
    for (uint32_t more = other.count; more != 0; --more)
      other.counter.bump();
  program_.run({changed.data(), changed.size()});
  return outputs;
}

// --- FunctionRecording

FunctionRecording::FunctionRecording(std::vector<at::Tensor> inputs, bool may_move,
                                     RecordedCalls calls)
    : inputs_{std::move(inputs), {}, may_move}, recorder_(calls) {
  for (const at::Tensor& input : inputs_.tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(is_strided_remote(input), "an argument is ", input.toString(),
                                ", and no strided tensor of a server");
    inputs_.versions.push_back(version_of(input));
  }
  if (!inputs_.tensors.empty()) {
    Session& session = *session_of(*record_of(inputs_.tensors.front()));
    inputs_.first_new = session.order().new_names().storages(0);
  }
}

std::unique_ptr<Function> FunctionRecording::finish(at::TensorList outputs) {
  std::optional<Recorded> recorded = recorder_.finish();
  if (!recorded)
    return nullptr;
  for (size_t i = 0; i < inputs_.tensors.size(); ++i)
    inputs_.versions[i] = take_versions(inputs_.tensors[i], inputs_.versions[i]);
  inputs_.others = recorder_.take_versions();
  return std::make_unique<Function>(*std::move(recorded), inputs_, outputs);
}

}  // namespace torch_remote::client
