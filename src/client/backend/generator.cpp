#include "client/backend/generator.h"

#include <array>

#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>

#include "client/backend/guard.h"
#include "client/process.h"

namespace torch_remote::client {
namespace {

using wire::GeneratorAction;
using wire::GeneratorMessage;

void send(Session& session, const GeneratorMessage& message) {
  session.submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
    encode(writer, message);
    return true;
  });
}

std::array<at::Generator, kMaxDevices>& defaults() {
  static auto* generators = [] {
    auto* made = new std::array<at::Generator, kMaxDevices>;
    for (c10::DeviceIndex i = 0; i < kMaxDevices; ++i) {
      (*made)[static_cast<size_t>(i)] = at::make_generator<RemoteGenerator>(i, true);
    }
    return made;
  }();
  return *generators;
}

}  // namespace

RemoteGenerator::RemoteGenerator(c10::DeviceIndex device, bool is_default)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      is_default_(is_default),
      seed_(c10::default_rng_seed_val) {}

RemoteGenerator::~RemoteGenerator() {
  MutexLock lock(name_mutex_);
  if (session_ == nullptr || is_default_ || in_forked_child() || is_exiting() ||
      session_->is_lost())
    return;
  try {
    GeneratorMessage message;
    message.name = name_;
    message.action = GeneratorAction::kFree;
    send(*session_, message);
  } catch (...) {  // a destructor says nothing; the session's end frees it too
  }
}

DevicePlace RemoteGenerator::place() const {
  return Machines::instance().place(device_.index());
}

uint64_t RemoteGenerator::name() const {
  if (is_default_)
    return wire::kDefaultGenerator + place().device;
  const DevicePlace where = place();
  MutexLock lock(name_mutex_);
  if (session_ == where.session)
    return name_;
  name_ = where.session->new_generator_name();
  GeneratorMessage message;
  message.name = name_;
  message.action = GeneratorAction::kMake;
  message.seed = where.device;
  send(*where.session, message);
  message.action = GeneratorAction::kSeed;
  message.seed = seed_;
  send(*where.session, message);
  session_ = where.session;
  return name_;
}

void RemoteGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  seeded_ = true;
  if (in_forked_child())
    return;
  if (is_default_ && !Machines::instance().has_device(device_.index()))
    return;  // told when it comes up
  if (place().session->is_lost())
    return;
  GeneratorMessage message;
  message.name = name();
  message.action = GeneratorAction::kSeed;
  message.seed = seed;
  send(*place().session, message);
}

void RemoteGenerator::send_to(Session& session, uint8_t device) {
  if (!seeded_)
    return;
  GeneratorMessage message;
  message.name = wire::kDefaultGenerator + device;
  message.action = GeneratorAction::kSeed;
  message.seed = seed_;
  send(session, message);
}

uint64_t RemoteGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(random);
  return random;
}

void RemoteGenerator::set_offset(uint64_t /*offset*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "a remote generator's offset belongs to the server: use set_state");
}

uint64_t RemoteGenerator::get_offset() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "a remote generator's offset belongs to the server: use get_state");
}

void RemoteGenerator::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK_TYPE(new_state.device().is_cpu() &&
                       new_state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                       new_state.is_contiguous(),
                   "RNG state must be a torch.ByteTensor");
  GeneratorMessage message;
  message.name = name();
  message.action = GeneratorAction::kSetState;
  const auto* bytes = static_cast<const std::byte*>(new_state.data());
  message.state.assign(bytes, bytes + new_state.numel());
  send(*place().session, message);
}

c10::intrusive_ptr<c10::TensorImpl> RemoteGenerator::get_state() const {
  Session& session = *place().session;
  const uint64_t wanted = name();
  const auto request = session.make_request({}, nullptr);
  session.submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
    writer.u8(static_cast<uint8_t>(wire::Tag::kQuery));
    writer.varint(request->id);
    writer.u8(static_cast<uint8_t>(wire::QueryKind::kGenerator));
    writer.varint(wanted);
    return true;
  });
  session.wait(request, "generator state");
  at::Tensor state =
      at::empty({static_cast<int64_t>(request->body.size())}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(state.mutable_data_ptr(), request->body.data(), request->body.size());
  return state.getIntrusivePtr();
}

RemoteGenerator* RemoteGenerator::clone_impl() const {
  auto* copy = new RemoteGenerator(device_.index(), false);
  copy->seed_ = seed_;
  const c10::intrusive_ptr<c10::TensorImpl> state = get_state();
  copy->set_state(*state);
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  if (device < 0)
    device = current_device();
  TORCH_CHECK(device < kMaxDevices, "there is no remote device ", static_cast<int>(device));
  return defaults()[static_cast<size_t>(device)];
}

uint64_t generator_name(const c10::GeneratorImpl& generator) {
  return static_cast<const RemoteGenerator&>(generator).name();
}

void send_default_seed(c10::DeviceIndex index, Session* session, uint8_t device) {
  static_cast<RemoteGenerator*>(default_generator(index).unsafeGetGeneratorImpl())
      ->send_to(*session, device);
}

}  // namespace torch_remote::client
