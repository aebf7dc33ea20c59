#include "client/machines.h"

#include <algorithm>
#include <cstdlib>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "client/backend/generator.h"
#include "client/open.h"
#include "client/process.h"

namespace torch_remote::client {

Machines& Machines::instance() {
  static Machines* machines = new Machines;
  return *machines;
}

void Machines::set_server_path(std::string path) {
  MutexLock lock(mutex_);
  server_path_ = std::move(path);
}

Session* Machines::open(const std::string& url) {
  if (in_forked_child())
    refuse_in_forked_child();
  std::string path;
  {
    MutexLock lock(mutex_);
    path = server_path_;
  }
  watch_forks();
  return new Session(url, way_to(url, path),
                     url.starts_with("tcp://") ? token_from_environment() : "");
}

int Machines::add(Session* session) {
  Machine machine;
  machine.id = static_cast<int>(machines_.size());
  machine.session = session;
  machine.devices.push_back(take_index(session, 0));  // it has one at least
  machines_.push_back(machine);
  return machine.id;
}

c10::DeviceIndex Machines::take_index(Session* session, uint8_t device) {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].session.load() != nullptr)
      continue;
    places_[i].device.store(device);
    places_[i].session.store(session, std::memory_order_release);
    return static_cast<c10::DeviceIndex>(i);
  }
  TORCH_CHECK(false, "all ", kMaxDevices, " remote devices are in use; stop a machine first");
}

int Machines::connect(const std::string& url) {
  Session* session = open(url);
  int id = 0;
  {
    MutexLock lock(mutex_);
    id = add(session);
    initialized_.store(true, std::memory_order_release);
  }
  send_seeds(session);
  if (url != "local")
    learn_devices(id);
  return id;
}

void Machines::ensure_default() {
  if (is_initialized() || is_exiting())
    return;
  MutexLock opening(opening_);  // one thread starts it, the others wait for that
  {
    MutexLock lock(mutex_);
    if (has_machine())
      return;
  }
  const char* url = std::getenv("TORCH_REMOTE");
  Session* session = open(url == nullptr || *url == '\0' ? "local" : url);
  {
    MutexLock lock(mutex_);
    add(session);
    initialized_.store(true, std::memory_order_release);
  }
  send_seeds(session);
}

// The default generators of a machine's devices start from what the user has seeded. Without the lock: a session
// that is already lost raises.
void Machines::send_seeds(Session* session) {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].session.load() != session || session->is_lost())
      continue;
    send_default_seed(static_cast<c10::DeviceIndex>(i), session, places_[i].device.load());
  }
}

bool Machines::has_machine() {
  return std::any_of(machines_.begin(), machines_.end(),
                     [](const Machine& machine) { return !machine.stopped; });
}

void Machines::drop_unreached(const Session* session) {
  MutexLock lock(mutex_);
  for (Machine& machine : machines_) {
    if (machine.session != session || machine.stopped)
      continue;
    machine.stopped = true;
    for (const c10::DeviceIndex index : machine.devices)
      places_[static_cast<size_t>(index)].session.store(nullptr);
  }
  initialized_.store(has_machine(), std::memory_order_release);
}

// Waits for the handshake, then gives every device of the machine an index.
void Machines::learn_devices(int id) {
  Session* session = nullptr;
  {
    MutexLock lock(mutex_);
    const Machine& machine = machines_[static_cast<size_t>(id)];
    if (machine.devices_known || machine.stopped)
      return;
    session = machine.session;
  }
  const size_t count = session->welcome().devices.size();
  {
    MutexLock lock(mutex_);
    Machine& machine = machines_[static_cast<size_t>(id)];
    if (machine.devices_known || machine.stopped)
      return;
    for (size_t i = machine.devices.size(); i < count; ++i) {
      machine.devices.push_back(take_index(session, static_cast<uint8_t>(i)));
    }
    machine.devices_known = true;
  }
  if (count > 1)
    send_seeds(session);
}

DevicePlace Machines::find_place(c10::DeviceIndex index) {
  if (in_forked_child())
    refuse_in_forked_child();
  ensure_default();
  if (!has_device(index)) {
    for (const int id : ids())
      learn_devices(id);
  }
  // Loaded once: another thread may stop the machine at any moment.
  const bool is_index = index >= 0 && index < kMaxDevices;
  const Place* place = is_index ? &places_[static_cast<size_t>(index)] : nullptr;
  Session* session = is_index ? place->session.load(std::memory_order_acquire) : nullptr;
  if (session == nullptr)
    refuse_index(index);
  return {session, place->device.load()};
}

void Machines::refuse_index(c10::DeviceIndex index) {
  park_if_exiting();
  std::string there;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].session.load() == nullptr)
      continue;
    there += (there.empty() ? "" : ", ") +
             c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(i)).str();
  }
  const std::string name = c10::DeviceTypeName(c10::kPrivateUse1, true);
  TORCH_CHECK(false, index < 0 ? "that device index" : name + ":" + std::to_string(index),
              " does not exist; there is ", there.empty() ? "no remote device" : there);
}

c10::DeviceIndex Machines::device_count() {
  c10::DeviceIndex count = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].session.load() != nullptr)
      count = static_cast<c10::DeviceIndex>(i + 1);
  }
  return count;
}

c10::DeviceIndex Machines::index_of(const Session* session, uint8_t device) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].session.load() == session && places_[i].device.load() == device) {
      return static_cast<c10::DeviceIndex>(i);
    }
  }
  return 0;
}

std::vector<c10::DeviceIndex> Machines::devices_of(int id) {
  learn_devices(id);
  MutexLock lock(mutex_);
  return machines_.at(static_cast<size_t>(id)).devices;
}

Session* Machines::session(int id) {
  MutexLock lock(mutex_);
  return machines_.at(static_cast<size_t>(id)).session;
}

std::vector<Session*> Machines::sessions() {
  MutexLock lock(mutex_);
  std::vector<Session*> sessions;
  for (const Machine& machine : machines_)
    sessions.push_back(machine.session);
  return sessions;
}

std::vector<int> Machines::ids() {
  MutexLock lock(mutex_);
  std::vector<int> ids;
  for (const Machine& machine : machines_) {
    if (!machine.stopped)
      ids.push_back(machine.id);
  }
  return ids;
}

void Machines::stop(int id) {
  Session* session = nullptr;
  {
    MutexLock lock(mutex_);
    Machine& machine = machines_.at(static_cast<size_t>(id));
    if (machine.stopped)
      return;
    machine.stopped = true;
    session = machine.session;
    for (const c10::DeviceIndex index : machine.devices) {
      places_[static_cast<size_t>(index)].session.store(nullptr, std::memory_order_release);
    }
    initialized_.store(has_machine(), std::memory_order_release);
  }
  session->stop(std::chrono::seconds(2), "the machine was stopped by this process");
}

void Machines::abandon_in_forked_child() noexcept {
  for (Place& place : places_) {
    if (Session* session = place.session.load())
      session->abandon();
    place.session.store(nullptr);
  }
}

void Machines::shutdown() {
  if (in_forked_child())
    return;
  mark_exiting();
  for (const int id : ids())
    stop(id);
}

}  // namespace torch_remote::client
