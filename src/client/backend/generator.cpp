#include "client/backend/generator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "client/process/current_device.h"
#include "client/process/errors.h"
#include "client/process/process.h"
#include "client/process/recording.h"
#include "client/session/submission.h"
#include "marshal/generator_copy.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

using wire::GeneratorAction;
using wire::GeneratorMessage;

constexpr size_t kCudaStateBytes = 16;  // seed and offset
constexpr uint64_t kCudaOffsetStep = 4;
// Snapshots that were not read. Beyond this many, a state's bytes are fetched at once, so that a
// program that keeps many states does not exceed the server's limit.
constexpr int64_t kMaxSnapshots = wire::kMaxGenerators / 2;

std::atomic<int64_t> live_generators{0};  // without the default generators

void check_room() {
  TORCH_CHECK(live_generators.load() < static_cast<int64_t>(wire::kMaxGenerators),
              "there are already ", wire::kMaxGenerators, " remote generators");
}

GeneratorMessage message(uint64_t name, GeneratorAction action, uint64_t seed) {
  GeneratorMessage made;
  made.name = name;
  made.action = action;
  made.seed = seed;
  return made;
}

using Messages = std::initializer_list<GeneratorMessage>;

void send(Session& session, Messages messages, IfLost if_lost = IfLost::kRaise) {
  Submission at(session, if_lost);
  for (const GeneratorMessage& each : messages)
    encode(at.writer(), each);
}

// For callers that hold a lock: raising takes the GIL. The next use of a lost session raises.
void send_if_open(Session& session, Messages messages) {
  if (!session.link().is_lost())
    send(session, messages, IfLost::kWrite);
}

std::array<at::Generator, kMaxDevices>& defaults() {
  static auto* generators = [] {
    auto* made = new std::array<at::Generator, kMaxDevices>;
    for (c10::DeviceIndex i = 0; i < kMaxDevices; ++i)
      (*made)[static_cast<size_t>(i)] = at::make_generator<RemoteGenerator>(i, true);
    return made;
  }();
  return *generators;
}

// Thread-safe.
struct MadeGenerators {
  using Weak = c10::weak_intrusive_ptr<c10::GeneratorImpl>;
  static constexpr size_t kFew = 64;

  Mutex mutex;
  std::vector<Weak> list GUARDED_BY(mutex);
  size_t limit GUARDED_BY(mutex) = kFew;  // at this size the dead ones are removed

  static MadeGenerators& instance() {
    static auto* made = new MadeGenerators;
    return *made;
  }
};

int64_t state_bytes(wire::DeviceKind kind) {
  static const int64_t cpu = at::detail::createCPUGenerator().get_state().numel();
  return kind == wire::DeviceKind::kCuda ? int64_t{kCudaStateBytes} : cpu;
}

// While the thread records: each run of the program copies the state.
void record_copy(const RemoteGenerator& to, const RemoteGenerator& source) {
  static const auto kOperator = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow(marshal::kCopyGenerator, "")
                                    .typed<void(at::Generator, const at::Generator&)>();
  const auto share = [](const RemoteGenerator& generator) {
    return at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(
        const_cast<RemoteGenerator*>(&generator)));
  };
  kOperator.call(share(to), share(source));
}

// The seed in a state. Refuses other states with the text of that kind of generator.
uint64_t seed_in(const c10::TensorImpl& state, wire::DeviceKind kind) {
  if (kind == wire::DeviceKind::kCpu) {
    at::Generator reader = at::detail::createCPUGenerator();
    reader.unsafeGetGeneratorImpl()->set_state(state);
    return reader.current_seed();
  }
  TORCH_CHECK(state.numel() == kCudaStateBytes || state.numel() == sizeof(uint64_t),
              "RNG state is wrong size");
  uint64_t seed = 0;
  std::memcpy(&seed, state.data(), sizeof(seed));
  return seed;
}

}  // namespace

RemoteGenerator::RemoteGenerator(c10::DeviceIndex device, bool is_default)
    : StateSource(c10::Device(c10::kPrivateUse1, device),
                  c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      is_default_(is_default),
      seed_(c10::default_rng_seed_val) {
  live_generators += is_default ? 0 : 1;
}

RemoteGenerator::~RemoteGenerator() {
  leave_server();
}

void RemoteGenerator::release_resources() {
  leave_server();
}

void RemoteGenerator::leave_server() noexcept {
  if (in_forked_child() || is_exiting())
    return;  // locks may be held by threads that no longer run
  MutexLock lock(mutex_);
  if (std::exchange(has_left_, true))
    return;
  live_generators -= is_default_ ? 0 : 1;
  if (session_ == nullptr)
    return;
  try {
    send_if_open(*session_, {message(name_, GeneratorAction::kFree, 0)});
  } catch (...) {  // a destructor must not throw; the end of the session frees it too
  }
}

DevicePlace RemoteGenerator::place() const {
  return Machines::instance().place(device_.index());
}

wire::DeviceKind RemoteGenerator::kind() const {
  const DevicePlace where = place();
  return device_kind(*where.session, where.device);
}

uint64_t RemoteGenerator::name() const {
  const DevicePlace where = place();
  if (is_default_)
    return wire::kDefaultGenerator + where.device;
  MutexLock lock(mutex_);
  if (session_ == where.session)
    return name_;
  check_room();
  name_ = where.session->order().new_names().generator();
  send_if_open(*where.session, {message(name_, GeneratorAction::kMake, where.device),
                                message(name_, GeneratorAction::kSeed, seed_)});
  session_ = where.session;
  return name_;
}

// --- seeds

void RemoteGenerator::set_current_seed(uint64_t seed) {
  if (in_forked_child())
    return;  // locks may be held by threads that no longer run
  check_not_recording("seeding a generator");
  MutexLock lock(mutex_);
  seed_ = seed;
  seeded_ = true;
  reseeded_ = true;
  if (!is_default_) {
    if (session_ != nullptr)
      send_if_open(*session_, {message(name_, GeneratorAction::kSeed, seed)});
    return;  // the server gets the seed at the first use
  }
  const DevicePlace where = Machines::instance().place_if_there(device_.index());
  if (where.session == nullptr)
    return;  // the server gets the seed when the device is connected
  send_if_open(*where.session,
               {message(wire::kDefaultGenerator + where.device, GeneratorAction::kSeed, seed)});
}

void RemoteGenerator::attach(Session& session, uint8_t device,
                             const std::function<void()>& publish) {
  MutexLock lock(mutex_);
  choose_seed();
  send_if_open(session, {message(wire::kDefaultGenerator + device, GeneratorAction::kSeed, seed_)});
  publish();
}

uint64_t RemoteGenerator::current_seed() const {
  MutexLock lock(mutex_);
  choose_seed();
  return seed_;
}

void RemoteGenerator::choose_seed() const {
  if (!is_default_ || seeded_)
    return;
  seed_ = c10::detail::getNonDeterministicRandom(true);
  seeded_ = true;
}

uint64_t RemoteGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(random);
  return random;
}

// --- states

std::optional<uint64_t> RemoteGenerator::seed_before_use() const {
  MutexLock lock(mutex_);  // attach() publishes the device under it
  if (Machines::instance().has_device(device_.index()))
    return std::nullopt;
  choose_seed();
  return seed_;
}

void RemoteGenerator::copy_to(RemoteGenerator& copy) const {
  check_room();
  if (const auto seed = seed_before_use())
    return copy.remember_seed(*seed);
  const DevicePlace where = place();
  const uint64_t source = name();
  const uint64_t target = where.session->order().new_names().generator();
  send(*where.session, {message(target, GeneratorAction::kMake, where.device),
                        message(target, GeneratorAction::kCopy, source)});
  const uint64_t seed = current_seed();
  MutexLock lock(copy.mutex_);
  copy.name_ = target;
  copy.session_ = where.session;
  copy.seed_ = seed;
}

RemoteGenerator* RemoteGenerator::clone_impl() const {
  check_not_recording("a copy of a generator");
  auto copy = std::make_unique<RemoteGenerator>(device_.index(), false);
  copy_to(*copy);
  return copy.release();
}

// at::Generator reads the storage of the result, so the bytes are fetched.
c10::intrusive_ptr<c10::TensorImpl> RemoteGenerator::get_state() const {
  const KeepGil keep;
  const at::Tensor state = take_state();
  static_cast<const GeneratorState*>(state.unsafeGetTensorImpl())->fetch();
  return state.getIntrusivePtr();
}

at::Tensor RemoteGenerator::take_state() const {
  auto snapshot = c10::make_intrusive<RemoteGenerator>(device_.index(), false);
  copy_to(*snapshot);
  if (current_recording() != nullptr)
    record_copy(*snapshot, *this);
  const bool is_announced = snapshot->is_announced();
  auto state = is_announced
                   ? c10::make_intrusive<GeneratorState>(std::move(snapshot), state_bytes(kind()))
                   : c10::make_intrusive<GeneratorState>(std::move(snapshot));
  if (live_generators.load() > kMaxSnapshots)
    state->fetch();
  return at::Tensor(std::move(state));
}

RemoteGenerator::Announced RemoteGenerator::announced() const {
  MutexLock lock(mutex_);
  return {session_, name_};
}

std::vector<std::byte> RemoteGenerator::read_snapshot() const {
  check_not_recording("a read of a generator's state");
  if (!is_announced())
    name();
  const Announced where = announced();
  return where.session->query(
      wire::QueryKind::kGenerator, "generator state",
      [&](wire::Writer& writer) { wire::encode_generator_query(writer, where.name); });
}

void RemoteGenerator::remember_seed(uint64_t seed) {
  MutexLock lock(mutex_);
  seed_ = seed;
}

void RemoteGenerator::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK_TYPE(new_state.device().is_cpu() &&
                       new_state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                       new_state.is_contiguous(),
                   "RNG state must be a torch.ByteTensor");
  const KeepGil keep;
  const auto* const state = dynamic_cast<const GeneratorState*>(&new_state);
  const c10::intrusive_ptr<StateSource> source = state == nullptr ? nullptr : state->snapshot();
  // Every GeneratorState is made by take_state(), so its source is a RemoteGenerator.
  const auto* const snapshot = static_cast<const RemoteGenerator*>(source.get());
  if (current_recording() != nullptr && snapshot != nullptr)
    return record_copy(*this, *snapshot);
  check_not_recording("the state of a generator");
  reseeded_ = true;
  if (snapshot != nullptr && !snapshot->is_announced())
    return set_current_seed(snapshot->current_seed());
  const DevicePlace where = place();
  if (snapshot != nullptr && snapshot->announced().session == where.session) {
    send(*where.session, {message(name(), GeneratorAction::kCopy, snapshot->announced().name)});
    return remember_seed(snapshot->current_seed());
  }
  const uint64_t seed = seed_in(new_state, kind());
  GeneratorMessage put = message(name(), GeneratorAction::kSetState, 0);
  const auto* bytes = static_cast<const std::byte*>(new_state.data());
  put.state.assign(bytes, bytes + new_state.numel());
  send(*where.session, {put});
  remember_seed(seed);
}

// A CPU's generator has no offset. PyTorch asks for one to pickle any generator but its own CPU's.
uint64_t RemoteGenerator::get_offset() const {
  if (kind() == wire::DeviceKind::kCpu)
    return 0;
  const KeepGil keep;
  const uint64_t wanted = name();
  const std::vector<std::byte> state = place().session->query(
      wire::QueryKind::kGenerator, "generator offset",
      [&](wire::Writer& writer) { wire::encode_generator_query(writer, wanted); });
  TORCH_CHECK(state.size() == kCudaStateBytes, "the server's generator has no offset");
  uint64_t offset = 0;
  std::memcpy(&offset, state.data() + sizeof(uint64_t), sizeof(offset));
  return offset;
}

void RemoteGenerator::set_offset(uint64_t offset) {
  if (kind() == wire::DeviceKind::kCpu) {
    TORCH_CHECK(offset == 0, "CPU Generator does not use offset");
    return;
  }
  TORCH_CHECK(offset % kCudaOffsetStep == 0, "offset must be a multiple of 4");
  const uint64_t seed = current_seed();
  GeneratorMessage put = message(name(), GeneratorAction::kSetState, 0);
  put.state.resize(kCudaStateBytes);
  std::memcpy(put.state.data(), &seed, sizeof(seed));
  std::memcpy(put.state.data() + sizeof(seed), &offset, sizeof(offset));
  send(*place().session, {put});
}

// --- by device

const at::Generator& default_generator(c10::DeviceIndex device) {
  if (device < 0)
    device = current_device();
  TORCH_CHECK(device < kMaxDevices, "there is no remote device ", static_cast<int>(device));
  return defaults()[static_cast<size_t>(device)];
}

at::Generator new_generator(c10::DeviceIndex device) {
  at::Generator made = at::make_generator<RemoteGenerator>(device, false);
  MadeGenerators& all = MadeGenerators::instance();
  MutexLock lock(all.mutex);
  if (all.list.size() >= all.limit) {
    std::erase_if(all.list, [](const MadeGenerators::Weak& each) { return each.expired(); });
    all.limit = std::max(MadeGenerators::kFew, 2 * all.list.size());
  }
  all.list.emplace_back(made.getIntrusivePtr());
  return made;
}

std::vector<at::Generator> announced_generators() {
  MadeGenerators& all = MadeGenerators::instance();
  std::vector<at::Generator> found;
  MutexLock lock(all.mutex);
  for (const MadeGenerators::Weak& each : all.list) {
    auto generator = each.lock();
    if (generator && static_cast<const RemoteGenerator&>(*generator).is_announced())
      found.emplace_back(std::move(generator));
  }
  return found;
}

bool take_default_reseeded(c10::DeviceIndex device) {
  return static_cast<RemoteGenerator*>(default_generator(device).unsafeGetGeneratorImpl())
      ->take_reseeded();
}

uint64_t generator_name(const c10::GeneratorImpl& generator) {
  return static_cast<const RemoteGenerator&>(generator).name();
}

at::Tensor take_state(c10::DeviceIndex device) {
  return static_cast<const RemoteGenerator*>(default_generator(device).unsafeGetGeneratorImpl())
      ->take_state();
}

void attach_default_generator(c10::DeviceIndex index, Session& session, uint8_t device,
                              const std::function<void()>& publish) {
  static_cast<RemoteGenerator*>(default_generator(index).unsafeGetGeneratorImpl())
      ->attach(session, device, publish);
}

}  // namespace torch_remote::client
