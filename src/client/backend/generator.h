#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include "base/mutex.h"
#include "client/machines.h"

namespace torch_remote::client {

// Stands for a generator whose state the server owns, known to it by name. Seeding is a message in order;
// reading the state waits.
class RemoteGenerator final : public c10::GeneratorImpl {
 public:
  // A device's default generator: it exists before any machine is connected, and remembers its seed until then.
  explicit RemoteGenerator(c10::DeviceIndex device, bool is_default);
  ~RemoteGenerator() override;

  void set_current_seed(uint64_t seed) override;

  uint64_t current_seed() const override { return seed_; }

  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Its name on the session of its device, which is told of it at the first use.
  uint64_t name() const;
  // A default generator's machine has just come up: tell it what was set before.
  void send_to(Session& session, uint8_t device);

 private:
  RemoteGenerator* clone_impl() const override;
  DevicePlace place() const;

  const bool is_default_;
  uint64_t seed_;
  bool seeded_ = false;
  mutable Mutex name_mutex_;
  mutable uint64_t name_ GUARDED_BY(name_mutex_) = 0;
  mutable Session* session_ GUARDED_BY(name_mutex_) = nullptr;  // whom it has been told to
};

const at::Generator& default_generator(c10::DeviceIndex device);
uint64_t generator_name(const c10::GeneratorImpl& generator);

// A new machine's device took this index: its default generator starts from what the user has seeded.
void send_default_seed(c10::DeviceIndex index, Session* session, uint8_t device);

}  // namespace torch_remote::client
