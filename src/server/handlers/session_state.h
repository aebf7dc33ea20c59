#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>

#include "marshal/decode.h"
#include "server/bytes/device_reads.h"
#include "server/bytes/peer_links.h"
#include "server/bytes/reply.h"
#include "server/bytes/uploads.h"
#include "server/device/devices.h"
#include "server/device/streams.h"
#include "server/executor/call_log.h"
#include "server/executor/call_profile.h"
#include "server/executor/execute.h"
#include "server/executor/failures.h"
#include "server/executor/generators.h"
#include "server/executor/storage_table.h"
#include "server/handlers/call_plans.h"
#include "server/operators/operators.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace torch_remote::server {

class Groups;  // its header has all of ATen

class SharedFolders;

struct InterpreterOptions {
  CallLog* call_log = nullptr;            // null: calls are not logged
  uint64_t max_memory = UINT64_MAX;       // for the session's storages
  std::optional<PeerOptions> peers = {};  // none: the session connects to no other server
  // Whose files the client may read; null: none.
  std::shared_ptr<const SharedFolders> files = nullptr;
};

// What the handlers of a session share. Confined to the executor thread; what other threads use
// too says so in its header. A member uses only members above it, so that it is destroyed before
// them.
struct SessionState {
  SessionState(const Devices& devices, const OperatorTable& operators, Uploads& uploads,
               Replies& replies, InterpreterOptions given);
  ~SessionState();
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;

  wire::Counters counters();
  // Waits until the devices are done. False: one failed, and the request is answered with that.
  bool finish_work(uint64_t request);

  // The session's devices, which messages name by number.
  const Devices& devices;
  // The operators that a client may introduce.
  const OperatorTable& operators;
  // The bytes of uploads, which the reader thread fills.
  Uploads& uploads;
  // Where every answer goes, and every error that the client did not ask for.
  Replies& replies;
  // What the server's command line says about this session.
  const InterpreterOptions options;
  // Sends large values of a GPU on a thread of its own. Streams' threads add to it.
  DeviceReads device_reads;
  // The client's streams and events. Their threads answer when they are done.
  Streams streams;
  // Bytes in no storage that count towards the limit of memory: StorageLimits::others.
  const std::shared_ptr<std::atomic<uint64_t>> counted = std::make_shared<std::atomic<uint64_t>>(0);
  // The client's storages by name.
  StorageTable storages;
  // The client's generators by name.
  Generators generators;
  // Which thread of the client sends, and which threads a failure has stopped.
  StoppedThreads threads;
  // The times of calls, while the client profiles.
  CallProfile profile;
  // Runs calls, and numbers everything that is numbered like a call.
  Executor executor;
  // The process groups. Collectives are calls, and find them by the Groups::Scope of apply().
  const std::unique_ptr<Groups> groups;
  // What SIGNATUREs have become.
  CallPlans plans;
  // How many READ and QUERY messages were answered.
  uint64_t answers = 0;
  // The name before, for names that are sent as differences. Empty at the beginning of each frame.
  wire::NameState names;
  // The slots of the call that is being applied, kept to save allocations.
  marshal::Slots slots;
};

// Answers that several handlers give. This one replies with what `write(writer)` writes.
template <typename Write>
void answer_with(Replies& replies, uint64_t request, Write&& write) {
  wire::Writer body;
  write(body);
  replies.reply(request, body.view());
}

// Answers with an error that stops no thread. Throws what ends the session.
void answer_failure(Replies& replies, uint64_t request, std::exception_ptr cause, const char* what);

// Answers the request when a stream or event is done, on the thread that finds it done.
Streams::OnDone answer_done(Replies& replies, uint64_t request);

}  // namespace torch_remote::server
