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

// Stands for a generator whose state the server owns, known to it by name. Seeding, taking a state and putting it
// back are messages in order; only reading a state's bytes waits (client/backend/generator_state.h). Thread-safe.
class RemoteGenerator final : public StateSource {
 public:
  // A device's default generator exists before any machine is connected, and remembers its seed until then.
  // A state that is taken before there is a machine is that seed.
  explicit RemoteGenerator(c10::DeviceIndex device, bool is_default);
  ~RemoteGenerator() override;

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state()
      const override;  // waits: at::Generator looks at it

  // Whether it was seeded, or its state set, since this was last asked. True the first time.
  bool take_reseeded() { return reseeded_.exchange(false); }

  // The state now, whose bytes are fetched when they are looked at: see Note [A generator's state].
  at::Tensor take_state() const;
  // Its name on the session of its device, which is told of it at the first use.
  uint64_t name() const;

  // Whether a session knows of this generator. Until then its seed is its whole state.
  bool is_told() const { return told().session != nullptr; }

  // The state of a copy that take_state() has made. Waits, and connects if the copy is of no session yet.
  std::vector<std::byte> read_snapshot() const override;

  // A default generator's device has come up: tells the server what was seeded before, then calls `publish`, which
  // lets others find the device. A seed given meanwhile waits, so that the server gets it after this one.
  void attach(Session& session, uint8_t device, const std::function<void()>& publish);

 private:
  struct Told {
    Session* session;  // null: nobody yet
    uint64_t name;
  };

  RemoteGenerator* clone_impl() const override;
  DevicePlace place() const;
  wire::DeviceKind kind() const;
  // Makes `copy` a generator with the state that this one has now: of the same session, or of none as long as the
  // device is not there. No wait.
  void copy_to(RemoteGenerator& copy) const;
  // The seed, as long as the device is not there: the next machine starts this generator from it.
  // A server seeds its default generator at random. So a default generator that nobody has seeded
  // chooses its seed here, and the server gets it: after the state is put back, the same numbers come.
  std::optional<uint64_t> seed_before_use() const;
  void remember_seed(uint64_t seed);
  Told told() const;

  const bool is_default_;
  mutable Mutex mutex_;
  mutable uint64_t seed_ GUARDED_BY(mutex_);
  mutable bool seeded_ GUARDED_BY(mutex_) = false;
  mutable uint64_t name_ GUARDED_BY(mutex_) = 0;
  mutable Session* session_ GUARDED_BY(mutex_) = nullptr;  // whom it has been told to
  std::atomic<bool> reseeded_{true};
};

const at::Generator& default_generator(c10::DeviceIndex device);
// RemoteGenerator::take_reseeded of a device's default generator.
bool take_default_reseeded(c10::DeviceIndex device);
uint64_t generator_name(const c10::GeneratorImpl& generator);

at::Tensor take_state(c10::DeviceIndex device);  // of a device's default generator

// A new machine's device gets this index: see RemoteGenerator::attach().
void attach_default_generator(c10::DeviceIndex index, Session& session, uint8_t device,
                              const std::function<void()>& publish);

}  // namespace torch_remote::client
