#include "server/executor/bindings.h"

namespace torch_remote::server {

using marshal::Plan;
using marshal::Slots;
using marshal::TensorRecipe;

void Bindings::bind(const Plan& plan, const Slots& slots, Origin made) {
  begin(slots.generators);
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    const wire::FreshStorage& storage = plan.storages[i];
    add(storage.fresh ? storages_.make(slots.storages[i], storage.nbytes,
                                       devices_.device(storage.device), storage.device, made)
                      : storages_.find(slots.storages[i]));
  }
}

void Bindings::bind_outputs(const Plan& plan, const Slots& slots, Origin made) {
  outputs_.clear();
  if (slots.outputs.empty())
    return;
  const uint64_t* name = slots.outputs.data();
  make_outputs(plan.outputs, plan.device, made, name);
}

void Bindings::make_outputs(const std::vector<wire::Output>& outputs, uint8_t device, Origin made,
                            const uint64_t*& name) {
  for (const wire::Output& output : outputs) {
    if (output.kind == wire::OutputKind::kFresh)
      add_output(storages_.make(*name++, wire::extent_bytes(output.spec), devices_.device(device),
                                device, made));
    else if (!output.items.empty())
      make_outputs(output.items, device, made, name);
  }
}

void Bindings::prepare(const Plan& plan) {
  for (const TensorRecipe& view : plan.tensors)
    storages_.prepare(*entries_[view.storage], view.may_change);
}

void Bindings::find_generators(const CallPlan& call, c10::SmallVectorImpl<at::Generator>& found) {
  found.clear();
  for (const uint64_t name : generator_names_)
    found.push_back(generators_.find(name));
  const bool draws_from_default =
      call.plan.takes_no_generator || (call.operation->is_seeded && generator_names_.empty());
  if (draws_from_default)
    generators_.use_default_of(call.plan.device);
}

}  // namespace torch_remote::server
