#include "client/machines/machines.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "base/log.h"
#include "client/link/open.h"
#include "client/process/process.h"

namespace torch_remote::client {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long the exit waits for calls. A local program that Ctrl-C ends does not finish its work.
constexpr milliseconds kExitPatience = std::chrono::hours(24 * 365);
constexpr milliseconds kInterruptedPatience{500};

// Empty if it is not set.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string default_url() {
  const std::string url = variable("TORCH_REMOTE");
  return url.empty() ? "local" : url;
}

// Whether the default machine is one that this side connects alone, without Python: the program
// names an address, or it names none and there is no configuration file.
bool is_plain_default() {
  const std::string url = variable("TORCH_REMOTE");
  if (!url.empty())
    return url == "local" || url.starts_with("unix://") || url.starts_with("tcp://") ||
           url.starts_with("tls://");
  std::string folder = variable("XDG_CONFIG_HOME");
  if (folder.empty() && variable("HOME").empty())
    return false;  // Python asks the password database
  if (folder.empty())
    folder = variable("HOME") + "/.config";
  std::error_code unknown;  // then Python says what is wrong
  const auto status = std::filesystem::status(folder + "/torch-remote/config.toml", unknown);
  return status.type() == std::filesystem::file_type::not_found;
}

// What is wrong with a URL is a ValueError in Python.
Endpoint make_endpoint(const std::string& url, const std::string& server_path,
                       std::vector<std::string> embedded_options, bool has_token) {
  try {
    return endpoint_to(url, server_path, std::move(embedded_options), has_token);
  } catch (const std::invalid_argument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

void abandon_machines() {
  Machines::instance().abandon_in_forked_child();
}

}  // namespace

Machines& Machines::instance() {
  static Machines* machines = new Machines;
  return *machines;
}

void Machines::set_embedded_server(std::optional<std::string> path,
                                   std::optional<std::vector<std::string>> options) {
  MutexLock lock(mutex_);
  if (path)
    server_path_ = std::move(*path);
  if (options)
    embedded_options_ = std::move(*options);
}

Session* Machines::open(const std::string& url, std::optional<std::string> token) {
  if (in_forked_child())
    refuse_in_forked_child();
  std::string path;
  std::vector<std::string> options;
  {
    MutexLock lock(mutex_);
    path = server_path_;
    options = embedded_options_;
  }
  watch_forks(&abandon_machines);
  const bool is_embedded = url == "local";
  std::exception_ptr no_token;
  try {
    if (!token)
      token = is_embedded ? "" : token_from_environment(url);  // an embedded server needs none
  } catch (const std::exception&) {
    no_token = std::current_exception();
  }
  Endpoint endpoint = make_endpoint(url, path, std::move(options), token && !token->empty());
  // Raised when the session opens, like other reasons why a server cannot be reached.
  if (no_token != nullptr)
    endpoint.open = [no_token]() -> std::unique_ptr<transport::Stream> {
      std::rethrow_exception(no_token);
    };
  endpoint.token = std::move(token).value_or("");
  return new Session(std::move(endpoint), this);
}

int Machines::add(Session* session, c10::DeviceIndex index) {
  int id = 0;
  {
    MutexLock lock(mutex_);
    Machine machine;
    machine.id = id = static_cast<int>(machines_.size());
    machine.session = session;
    machines_.push_back(machine);
  }
  publish(id, session, 0, index);  // every machine has at least one device
  initialized_.store(true, std::memory_order_release);
  return id;
}

bool Machines::is_awaited(c10::DeviceIndex index) const {
  if (index < 0 || index >= kMaxDevices)
    return false;
  return index == 0 ? !has_had_zero_.load()
                    : remotes_[static_cast<size_t>(index)].is_reserved.load();
}

// The index stays free while the caller holds opening_.
c10::DeviceIndex Machines::free_index(c10::DeviceIndex begin) {
  for (auto i = static_cast<size_t>(begin); i < remotes_.size(); ++i)
    if (remotes_[i].session.load() == nullptr && !remotes_[i].is_reserved.load())
      return static_cast<c10::DeviceIndex>(i);
  TORCH_CHECK(false, "all ", static_cast<int>(kMaxDevices),
              " remote devices are in use; stop a machine first");
}

c10::DeviceIndex Machines::first_index(std::optional<c10::DeviceIndex> wanted) {
  if (!wanted)
    return free_index();
  TORCH_CHECK(*wanted >= 0 && *wanted < kMaxDevices && !has_device(*wanted),
              "no machine can get the device index ", static_cast<int>(*wanted), " now");
  return *wanted;
}

// Gives a device of a machine its index. The server gets the seed of its default generator before
// any thread can find the device.
void Machines::publish(int id, Session* session, uint8_t device, c10::DeviceIndex index) {
  const auto publish_it = [&] {
    MutexLock lock(mutex_);
    Machine& machine = machines_[static_cast<size_t>(id)];
    if (machine.stopped)
      return;
    machine.devices.push_back(index);
    RemoteDevice& remote = remotes_[static_cast<size_t>(index)];
    remote.device.store(device);
    session->order().set_index(device, index);
    remote.session.store(session, std::memory_order_release);
    if (index == 0)
      has_had_zero_ = true;
  };
  if (hooks_.attach == nullptr)
    return publish_it();
  hooks_.attach(index, *session, device, publish_it);
}

c10::DeviceIndex Machines::reserve(c10::DeviceIndex begin) {
  MutexLock opening(opening_);
  const c10::DeviceIndex index = free_index(std::max<c10::DeviceIndex>(begin, 1));
  remotes_[static_cast<size_t>(index)].is_reserved = true;
  return index;
}

void Machines::unreserve(c10::DeviceIndex index) {
  MutexLock opening(opening_);
  remotes_.at(static_cast<size_t>(index)).is_reserved = false;
}

int Machines::connect(const std::string& url, std::optional<std::string> token,
                      std::optional<c10::DeviceIndex> index) {
  if (in_forked_child())
    refuse_in_forked_child();
  release_ended();
  int id = 0;
  {
    MutexLock opening(opening_);
    const c10::DeviceIndex first = first_index(index);  // raises before anything is started
    id = add(open(url, std::move(token)), first);
  }
  if (!index && sessions()[static_cast<size_t>(id)]->link().endpoint().has_listener)
    learn_devices(id);
  return id;
}

int Machines::connect_through(const std::string& url, std::vector<std::string> command,
                              std::optional<c10::DeviceIndex> index) {
  if (in_forked_child())
    refuse_in_forked_child();
  release_ended();
  int id = 0;
  {
    MutexLock opening(opening_);
    watch_forks(&abandon_machines);
    const c10::DeviceIndex first = first_index(index);
    id = add(new Session(endpoint_through(url, std::move(command)), this), first);
  }
  learn_devices(id);
  return id;
}

bool Machines::has_embedded_options() {
  MutexLock lock(mutex_);
  return !embedded_options_.empty();
}

void Machines::start_default() {
  if (!is_initialized())
    start(0);
}

void Machines::start(c10::DeviceIndex index) {
  if (is_exiting())
    return;
  if (in_forked_child())
    refuse_in_forked_child();
  // Not Python where it is not needed: a caller that holds a lock of PyTorch's (KeepGil) and waits
  // for the GIL would wait for a thread that has the GIL and waits for the lock.
  if (hooks_.start != nullptr &&
      (index != 0 || has_embedded_options() || hooks_.start_chooses.load() || !is_plain_default()))
    return hooks_.start(index);
  MutexLock opening(opening_);  // one thread starts it, the others wait
  if (!has_device(0))
    add(open(default_url()), 0);
}

void Machines::warn_after_stop() {
  if (is_exiting())
    return;  // a daemon thread during exit starts no machine
  std::string url;
  {
    MutexLock lock(mutex_);
    if (has_machine())
      return;
    url.swap(stopped_url_);
  }
  if (!url.empty())
    log(LogLevel::kWarning, "starting the default machine, since the program has stopped the last",
        {{"stopped", url}});
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
    ended_.push_back(machine.session);
    for (const c10::DeviceIndex index : machine.devices) {
      remotes_[static_cast<size_t>(index)].session.store(nullptr);
      if (index == 0)
        has_had_zero_ = false;
    }
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
  MutexLock opening(opening_);
  size_t known = 0;
  {
    MutexLock lock(mutex_);
    const Machine& machine = machines_[static_cast<size_t>(id)];
    if (machine.devices_known || machine.stopped)
      return;
    known = machine.devices.size();
  }
  // Further devices leave remote:0 to the default machine.
  for (size_t i = known; i < count; ++i)
    publish(id, session, static_cast<uint8_t>(i), free_index(is_awaited(0) ? 1 : 0));
  MutexLock lock(mutex_);
  machines_[static_cast<size_t>(id)].devices_known = true;
}

DevicePlace Machines::find_place(c10::DeviceIndex index) {
  if (in_forked_child())
    refuse_in_forked_child();
  warn_after_stop();
  if (is_awaited(index))
    start(index);
  else
    start_default();
  if (!has_device(index))
    for (const int id : ids())
      learn_devices(id);
  const DevicePlace there = place_if_there(index);
  if (there.session == nullptr)
    refuse_index(index);
  return there;
}

void Machines::refuse_index(c10::DeviceIndex index) {
  park_if_exiting();
  std::string there;
  int count = 0;
  for (size_t i = 0; i < remotes_.size(); ++i) {
    if (remotes_[i].session.load() == nullptr)
      continue;
    ++count;
    there += (there.empty() ? "" : ", ") +
             c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(i)).str();
  }
  bool was_stopped = false;
  {
    MutexLock lock(mutex_);
    for (const Machine& machine : machines_)
      was_stopped |=
          machine.stopped && std::ranges::find(machine.devices, index) != machine.devices.end();
  }
  const std::string name = c10::DeviceTypeName(c10::kPrivateUse1, true);
  TORCH_CHECK(false, index < 0 ? "that device index" : name + ":" + std::to_string(index),
              was_stopped ? " was stopped" : " does not exist", "; there ",
              count > 1 ? "are " : "is ", there.empty() ? "no remote device" : there);
}

c10::DeviceIndex Machines::device_count() {
  c10::DeviceIndex count = 0;
  for (size_t i = 0; i < remotes_.size(); ++i)
    if (remotes_[i].session.load() != nullptr)
      count = static_cast<c10::DeviceIndex>(i + 1);
  return count;
}

bool Machines::has_others(const Session* session) const {
  return std::any_of(remotes_.begin(), remotes_.end(), [session](const RemoteDevice& remote) {
    Session* const other = remote.session.load();
    return other != nullptr && other != session && other->order().submitted() != 0;
  });
}

c10::DeviceIndex Machines::index_of(const Session* session, uint8_t device) const {
  for (size_t i = 0; i < remotes_.size(); ++i)
    if (remotes_[i].session.load() == session && remotes_[i].device.load() == device)
      return static_cast<c10::DeviceIndex>(i);
  return 0;
}

std::vector<c10::DeviceIndex> Machines::devices_of(int id, bool waits) {
  if (waits)
    learn_devices(id);
  MutexLock lock(mutex_);
  return machines_.at(static_cast<size_t>(id)).devices;
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
  for (const Machine& machine : machines_)
    if (!machine.stopped)
      ids.push_back(machine.id);
  return ids;
}

// Catches everything, so that the process can end.
void Machines::print_unreported(Session& session, std::chrono::milliseconds patience) noexcept {
  try {
    const std::string text = session.describe_unreported(patience);
    has_printed_ = print_warnings(session) || has_printed_;
    if (text.empty())
      return;
    std::fputs(("torch_remote: " + text).c_str(), stderr);
  } catch (...) {
  }
  has_printed_ = true;
}

void Machines::stop(int id, bool wait) {
  Session* session = nullptr;
  {
    MutexLock lock(mutex_);
    const Machine& machine = machines_.at(static_cast<size_t>(id));
    if (machine.stopped)
      return;
    session = machine.session;
  }
  if (wait && session->order().submitted() != 0 && !session->link().was_loss_raised()) {
    try {
      session->synchronize();
    } catch (...) {
      stop(id, false);
      throw;
    }
  }
  if (!is_exiting())
    print_unreported(*session, {});
  {
    MutexLock lock(mutex_);
    Machine& machine = machines_.at(static_cast<size_t>(id));
    if (machine.stopped)
      return;
    machine.stopped = true;
    for (const c10::DeviceIndex index : machine.devices)
      remotes_[static_cast<size_t>(index)].session.store(nullptr, std::memory_order_release);
    if (!has_machine())
      stopped_url_ = session->link().endpoint().url;
    initialized_.store(has_machine(), std::memory_order_release);
  }
  // At exit print_unreported() has already waited.
  session->link().stop(std::chrono::seconds(is_exiting() ? 1 : 2),
                       "the machine was stopped by this process");
  if (is_exiting())
    return;
  {
    MutexLock lock(mutex_);
    ended_.push_back(session);
  }
  release_ended();
}

// A session whose threads have not ended (it is dialling, for instance) is released later.
void Machines::release_ended() {
  std::vector<Session*> sessions;
  {
    MutexLock lock(mutex_);
    sessions.swap(ended_);
  }
  std::erase_if(sessions, [](Session* session) { return session->release(); });
  MutexLock lock(mutex_);
  ended_.insert(ended_.end(), sessions.begin(), sessions.end());
}

void Machines::abandon_in_forked_child() noexcept {
  for (RemoteDevice& remote : remotes_) {
    if (Session* session = remote.session.load())
      session->link().abandon();
    remote.session.store(nullptr);
  }
}

bool Machines::shutdown(bool is_interrupted) {
  if (in_forked_child())
    return true;
  const auto end = Clock::now() + (is_interrupted ? kInterruptedPatience : kExitPatience);
  for (const int id : ids()) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    print_unreported(*sessions()[static_cast<size_t>(id)], std::max(left, milliseconds(1)));
  }
  mark_exiting();
  for (const int id : ids())
    stop(id);
  return !has_printed_;
}

}  // namespace torch_remote::client
