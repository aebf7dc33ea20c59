#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/mutex.h"
#include "server/bytes/reply.h"
#include "server/device/devices.h"
#include "server/groups/exchange_store.h"
#include "server/groups/sends.h"
#include "wire/group.h"

namespace torch_remote::server {

// One rank of a process group. Confined to the executor thread, but for what opens it.
class Group {
 public:
  // Begins to open; `request` is answered when the client must bring something, or all is done.
  Group(const Devices& devices, Replies& replies, Sends& sends, const wire::GroupQuery& query,
        uint64_t request);
  // Waits for sends that are under way, for at most the timeout.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // The client has brought values. Throws ProtocolError if none is waited for.
  void go_on(std::vector<wire::GroupEntry> entries, uint64_t request);
  // Throws if it is not open.
  c10d::Backend& engine();

 private:
  // The thread that opens it.
  void open(const Devices& devices, const wire::GroupQuery& query);
  void answer(const wire::GroupAnswer& answer);
  void fail(wire::Error failure);
  uint64_t take_request();

  Replies& replies_;
  Sends& sends_;
  c10::intrusive_ptr<ExchangeStore> store_;

  Mutex mutex_;
  uint64_t request_ GUARDED_BY(mutex_);  // to be answered; 0: none
  c10::intrusive_ptr<c10d::Backend> engine_ GUARDED_BY(mutex_);
  std::optional<wire::Error> failure_ GUARDED_BY(mutex_);  // why it could not be opened
  std::thread opening_;                                    // last: it uses the rest
};

// The process groups of a session: Note [Process groups] in wire/group.h. Confined to the executor
// thread.
class Groups {
 public:
  // `may_connect`: `serve --peers`.
  Groups(const Devices& devices, Replies& replies, bool may_connect);

  // Answers the request, now or later.
  void query(uint64_t request, wire::GroupQuery query);

  // Afterwards no thread of theirs uses `replies`.
  void close_all() { groups_.clear(); }

  // For the operators of collectives. Throws Refused if there is none with this name.
  Group& find(int64_t name);

  Sends& sends() { return sends_; }

  // The groups of the session whose executor thread this is. PyTorch calls a kernel without any
  // context, so it looks here. Throws Refused outside of an executor.
  static Groups& current();

  // While it lives, this thread's current groups are those.
  class Scope {
   public:
    explicit Scope(Groups& groups);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Groups* const before_;
  };

 private:
  void open(uint64_t request, const wire::GroupQuery& query);

  const Devices& devices_;
  Replies& replies_;
  const bool may_connect_;
  Sends sends_;  // of all groups
  std::unordered_map<uint64_t, std::unique_ptr<Group>> groups_;
};

}  // namespace torch_remote::server
