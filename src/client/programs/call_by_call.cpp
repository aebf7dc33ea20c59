#include "client/programs/call_by_call.h"

#include "client/process/current_device.h"
#include "client/session/message_order.h"
#include "client/session/session.h"

namespace torch_remote::client {

// --- made once

CallByCall::CallByCall(const Recorded& recorded)
    : steps_(recorded.steps.size()),
      records_(recorded.storages.size(), nullptr),
      names_(recorded.storages.size(), 0) {
  for (const NamedStorage& storage : recorded.named)
    records_[storage.number] = storage.record;
  read_slots(recorded);
  find_lives(recorded);
}

void CallByCall::read_slots(const Recorded& recorded) {
  const std::span<const std::byte> slots = recorded.slots.view();
  wire::NameState numbers;
  auto mention = recorded.mentions.begin();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const ProgramStep& step = recorded.steps[i];
    for (; mention != recorded.mentions.end() && *mention < step.outputs; ++mention) {
      wire::Reader reader(slots.subspan(*mention));
      const wire::StorageSlot slot = wire::decode_storage_slot(reader, numbers);
      steps_[i].mentions.push_back({*mention, slots.size() - reader.rest().size(),
                                    static_cast<uint32_t>(slot.name), slot.offset});
    }
    wire::Reader reader(slots.subspan(step.outputs, step.end - step.outputs));
    while (!reader.empty())
      steps_[i].outputs.push_back(static_cast<uint32_t>(wire::decode_name(reader, numbers)));
  }
}

void CallByCall::find_lives(const Recorded& recorded) {
  std::vector<Step*> last(recorded.storages.size(), nullptr);
  for (Step& step : steps_) {
    for (const Mention& mention : step.mentions) {
      if (last[mention.number] == nullptr && records_[mention.number] == nullptr)
        step.begun.push_back(mention.number);
      last[mention.number] = &step;
    }
    for (const uint32_t number : step.outputs)
      last[number] = &step;
  }
  for (uint32_t number = 0; number < last.size(); ++number)
    if (last[number] != nullptr && records_[number] == nullptr)
      last[number]->ended.push_back(number);
}

// --- each time

void CallByCall::submit(Submission& at, Recorded& recorded) {
  name_storages(at, recorded);
  for (size_t i = 0; i < steps_.size(); ++i) {
    at.end_full_frame();
    if (recorded.steps[i].signature == nullptr)
      encode(at.writer(), recorded.steps[i].settings);
    else
      submit_call(at, recorded, i);
  }
  at.forget_context();
}

void CallByCall::name_storages(Submission& at, const Recorded& recorded) {
  std::vector<uint32_t> made;
  for (const NamedStorage& storage : recorded.named) {
    names_[storage.number] = storage.record->name;
    if (!storage.is_made)
      at.announce(*storage.record, {current_line(), storage.record->server_device});
    else if (storage.record->announced)
      made.push_back(storage.number);
  }
  free_names(at, made);
  uint64_t name =
      recorded.session->order().new_names().storages(names_.size() - recorded.named.size());
  for (size_t number = 0; number < names_.size(); ++number)
    if (records_[number] == nullptr)
      names_[number] = name++;
}

void CallByCall::submit_call(Submission& at, Recorded& recorded, size_t index) {
  ProgramStep& step = recorded.steps[index];
  const CallSite site = recorded.sites[index];
  if (!step.signature->announced) {
    step.signature = at.signatures().add_known(step.signature);
    if (!step.signature->announced)
      at.announce(*step.signature, step.defaults);
  }
  for (const uint32_t number : steps_[index].begun) {
    const wire::ProgramStorage& storage = recorded.storages[number];
    at.number_message({site.line, storage.device, kResizeSite});
    encode(at.writer(), wire::Resize{names_[number], storage.device, storage.nbytes});
  }
  for (const Mention& mention : steps_[index].mentions)
    if (const StorageRecord* const record = records_[mention.number])
      at.use_current_stream(record->server_device);
  const auto [call, thread] = at.number_call(site);
  wire::encode_call(at.writer(), step.signature->index, [&] { encode_slots(at, recorded, index); });
  for (const uint32_t number : steps_[index].outputs)
    if (StorageRecord* const record = records_[number])
      record->note_made(call, thread);
  free_names(at, steps_[index].ended);
}

void CallByCall::encode_slots(Submission& at, const Recorded& recorded, size_t index) const {
  const std::span<const std::byte> slots = recorded.slots.view();
  const ProgramStep& step = recorded.steps[index];
  size_t begin = step.begin;
  for (const Mention& mention : steps_[index].mentions) {
    wire::append_slots(at.writer(), slots.subspan(begin, mention.begin - begin));
    wire::encode_storage_slot(at.writer(), at.names(), names_[mention.number], mention.offset);
    begin = mention.end;
  }
  wire::append_slots(at.writer(), slots.subspan(begin, step.outputs - begin));
  for (const uint32_t number : steps_[index].outputs)
    wire::encode_name(at.writer(), at.names(), names_[number]);
}

void CallByCall::free_names(Submission& at, const std::vector<uint32_t>& numbers) {
  if (numbers.empty())
    return;
  freed_.clear();
  for (const uint32_t number : numbers)
    freed_.push_back(names_[number]);
  wire::encode_free(at.writer(), freed_);
}

}  // namespace torch_remote::client
