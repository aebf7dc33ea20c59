#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "client/backend/generator_state.h"
#include "client/machines/machines.h"

namespace torch_remote::client {

// A generator whose state is on the server, under a name. Seeding it, taking its state and putting
// it back are messages in order; only reading a state's bytes waits. Thread-safe.
class RemoteGenerator final : public StateSource {
 public:
  // A device's default generator exists before any machine is connected, and keeps its seed until
  // then. A state that is taken before that is the seed.
  explicit RemoteGenerator(c10::DeviceIndex device, bool is_default);
  ~RemoteGenerator() override;

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state()
      const override;  // waits for the bytes, which at::Generator reads

  // Whether it was seeded, or its state set, since the last call of this. True the first time.
  bool take_reseeded() { return reseeded_.exchange(false); }

  // The state now. Its bytes are fetched when they are read: Note [A generator's state].
  at::Tensor take_state() const;
  // Its name on the session of its device. The first use announces it there.
  uint64_t name() const;

  // Whether it is announced to a session. Until then its seed is its whole state.
  bool is_announced() const { return announced().session != nullptr; }

  // The state of a copy made by take_state(). Waits, and connects if the copy has no session yet.
  std::vector<std::byte> read_snapshot() const override;

  // Nobody has it any more. With a weak reference to it, its destructor comes much later.
  void release_resources() override;

  // A default generator's device is connected: sends its seed to the server, then calls `publish`,
  // which lets others find the device. A seed set meanwhile waits and is sent after this one.
  void attach(Session& session, uint8_t device, const std::function<void()>& publish);

 private:
  struct Announced {
    Session* session;  // null: not announced
    uint64_t name;
  };

  RemoteGenerator* clone_impl() const override;
  void leave_server() noexcept;
  DevicePlace place() const;
  wire::DeviceKind kind() const;
  // Gives `copy` this generator's state now, on the same session, or on none before the device is
  // connected. Does not wait.
  void copy_to(RemoteGenerator& copy) const;
  // A default generator that was never seeded chooses its seed here, not on the server, so that a
  // state can be taken before the device is connected, and initial_seed() is true.
  void choose_seed() const REQUIRES(mutex_);
  // The seed, before the device is connected: the next machine starts this generator from it.
  std::optional<uint64_t> seed_before_use() const;
  void remember_seed(uint64_t seed);
  Announced announced() const;

  const bool is_default_;
  mutable Mutex mutex_;
  mutable uint64_t seed_ GUARDED_BY(mutex_);
  bool has_left_ GUARDED_BY(mutex_) = false;
  mutable bool seeded_ GUARDED_BY(mutex_) = false;
  mutable uint64_t name_ GUARDED_BY(mutex_) = 0;
  mutable Session* session_ GUARDED_BY(mutex_) = nullptr;  // where it is announced
  std::atomic<bool> reseeded_{true};
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
// Those of new_generator() that are alive and announced to a session: the state of any other is its
// seed.
std::vector<at::Generator> announced_generators();
bool take_default_reseeded(c10::DeviceIndex device);
uint64_t generator_name(const c10::GeneratorImpl& generator);

at::Tensor take_state(c10::DeviceIndex device);  // of a device's default generator

// Gives a device of a new machine this index: see RemoteGenerator::attach().
void attach_default_generator(c10::DeviceIndex index, Session& session, uint8_t device,
                              const std::function<void()>& publish);

}  // namespace torch_remote::client
