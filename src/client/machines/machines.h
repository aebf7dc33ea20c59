#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "base/mutex.h"
#include "client/session/session.h"

namespace torch_remote::client {

// Autograd creates one queue and thread for each of these. device_count() is the true number.
constexpr c10::DeviceIndex kMaxDevices = 16;

struct DevicePlace {
  Session* session = nullptr;
  uint8_t device = 0;  // the server's number for it
};

// The machines this process is connected to, and which of their devices is which `remote:k`.
// Sessions are never deleted: tensors of a stopped machine still point to theirs. Thread-safe.
class Machines : private SessionOwner {
 public:
  // Called when a device of a new machine gets an index. Sends the seed of its default generator to
  // the server, then calls `publish`, which lets others find the device.
  using Attach = void (*)(c10::DeviceIndex index, Session& session, uint8_t device,
                          const std::function<void()>& publish);

  static Machines& instance();  // leaks

  // Connects the machine of an index that is used for the first time: the default machine for
  // remote:0, else the one that the index is reserved for. Returns when the device has its index,
  // or throws. Called without locks; may be called by several threads at once.
  using Start = void (*)(c10::DeviceIndex index);

  struct Hooks {
    Attach attach = nullptr;  // nullptr: the device is published
    Start start = nullptr;    // nullptr: the default machine is TORCH_REMOTE, else embedded
    // `start` is called for every default machine, since it chooses which one that is.
    std::atomic<bool> start_chooses{false};
  };

  // To be set before the first machine; `start_chooses` at any time.
  Hooks& hooks() { return hooks_; }

  // Connects to a new machine and returns its id. Its first device gets `index`, else the first
  // index that is free and not reserved; so the first machine becomes remote:0. Without `token`,
  // that of the environment is used. Waits for the handshake where a server listens already, unless
  // `index` is given.
  int connect(const std::string& url, std::optional<std::string> token = std::nullopt,
              std::optional<c10::DeviceIndex> index = std::nullopt);
  // Connects through a command's standard input and output. `url` is for messages.
  int connect_through(const std::string& url, std::vector<std::string> command,
                      std::optional<c10::DeviceIndex> index = std::nullopt);
  // Reserves an index from `begin` for a machine that is connected when the index is first used.
  // Never remote:0, which is for the default machine or the first connect().
  c10::DeviceIndex reserve(c10::DeviceIndex begin = 1);
  // Gives a reserved index back. Its machine, if connected, keeps it until it stops.
  void unreserve(c10::DeviceIndex index);
  // Starts the default machine if none is connected; not during exit.
  void start_default();
  // Ends a session. `wait`: when its calls are done; a failure that was not raised is raised then,
  // and the session ends all the same. Further failures are printed.
  void stop(int id, bool wait = false);
  // Frees the index of a machine that could not be reached, so that the default can be tried again.
  void drop_unreached(const Session* session) override;

  // The session and server device of an index. May start the default machine; waits for handshakes
  // if the index is not remote:0.
  DevicePlace place(c10::DeviceIndex index) {
    const DevicePlace there = place_if_there(index);
    return there.session != nullptr ? there : find_place(index);
  }

  // As place(), but starts and waits for nothing. The session is null if the device does not exist.
  DevicePlace place_if_there(c10::DeviceIndex index) const {
    if (index < 0 || index >= kMaxDevices)
      return {};
    const RemoteDevice& remote = remotes_[static_cast<size_t>(index)];
    Session* session = remote.session.load(std::memory_order_acquire);
    return {session, remote.device.load(std::memory_order_relaxed)};
  }

  bool has_device(c10::DeviceIndex index) const { return place_if_there(index).session != nullptr; }

  // Devices of connected machines; 0 before the first.
  c10::DeviceIndex device_count();

  bool is_initialized() { return initialized_.load(std::memory_order_acquire); }

  bool has_others(const Session* session) const override;
  // Which remote:k a server's device is; 0 for a machine that was stopped.
  c10::DeviceIndex index_of(const Session* session, uint8_t device) const;
  // Without `waits`: those that have an index now, also before the handshake.
  std::vector<c10::DeviceIndex> devices_of(int id, bool waits = true);
  // By id.
  std::vector<Session*> sessions();
  std::vector<int> ids();

  // For embedded servers that are started from now on: the program, and further options.
  void set_embedded_server(std::optional<std::string> path,
                           std::optional<std::vector<std::string>> options = std::nullopt);
  void abandon_in_forked_child() noexcept;
  // At exit: waits for what was sent and stops all machines. After an interrupt it waits only
  // shortly. False: something was printed to stderr, failures or calls whose outcome is unknown.
  bool shutdown(bool is_interrupted);

 private:
  // What a `remote:k` is.
  struct RemoteDevice {
    std::atomic<Session*> session{nullptr};
    std::atomic<uint8_t> device{0};
    std::atomic<bool> is_reserved{false};
  };

  struct Machine {
    int id = 0;
    Session* session = nullptr;
    bool stopped = false;
    bool devices_known = false;
    std::vector<c10::DeviceIndex> devices;
  };

  DevicePlace find_place(c10::DeviceIndex index);
  // Warns once that a new machine replaces one that the user has stopped: a program must not go on
  // with this machine's CPU in place of a remote GPU unnoticed.
  void warn_after_stop();
  bool has_embedded_options();
  int add(Session* session, c10::DeviceIndex index) REQUIRES(opening_);
  bool has_machine() REQUIRES(mutex_);
  void learn_devices(int id);
  // Whether using the index starts a machine. remote:0 is the default machine's until a machine has
  // had it.
  bool is_awaited(c10::DeviceIndex index) const;
  // The first index from `begin` that a machine may get.
  c10::DeviceIndex free_index(c10::DeviceIndex begin = 0) REQUIRES(opening_);
  // `wanted`, which must have no machine, else a free index.
  c10::DeviceIndex first_index(std::optional<c10::DeviceIndex> wanted) REQUIRES(opening_);
  void publish(int id, Session* session, uint8_t device, c10::DeviceIndex index) REQUIRES(opening_);
  [[noreturn]] void refuse_index(c10::DeviceIndex index);
  Session* open(const std::string& url, std::optional<std::string> token = std::nullopt);
  void start(c10::DeviceIndex index);
  void release_ended();

  // Prints the failures that were never raised.
  void print_unreported(Session& session, std::chrono::milliseconds patience) noexcept;

  Hooks hooks_;
  std::array<RemoteDevice, kMaxDevices> remotes_;
  std::atomic<bool> has_had_zero_{false};  // a machine was remote:0
  std::atomic<bool> has_printed_{false};   // something was printed
  std::atomic<bool> initialized_{false};
  Mutex opening_;  // held while devices get their index; taken before mutex_
  Mutex mutex_;
  std::vector<Machine> machines_ GUARDED_BY(mutex_);
  std::string server_path_ GUARDED_BY(mutex_);
  std::vector<std::string> embedded_options_ GUARDED_BY(mutex_);
  std::string stopped_url_ GUARDED_BY(mutex_);      // for warn_after_stop(); empty: no warning
  std::vector<Session*> ended_ GUARDED_BY(mutex_);  // not released yet
};

}  // namespace torch_remote::client
