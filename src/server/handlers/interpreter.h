#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

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
#include "server/operators/operators.h"
#include "wire/codec.h"
#include "wire/messages.h"

namespace torch_remote::server {

class Groups;  // its header has all of ATen

// Limit for the memory of a session's signatures, in the server's form, and introductions. A client
// gives up signatures before it gets there (client/session/signature_table.h).
constexpr uint64_t kMaxSignatureMemory = uint64_t{2} << 30;

// All state of a session, and a handler for each message that changes it. Confined to the executor
// thread.
class Interpreter {
 public:
  Interpreter(const Devices& devices, const OperatorTable& table, Uploads& uploads,
              Replies& replies, CallLog* call_log = nullptr, uint64_t max_memory = UINT64_MAX,
              bool may_connect = false);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Applies the messages of one frame in order. Throws ProtocolError, which ends the session, on
  // bytes that our client never sends.
  void apply(std::span<const std::byte> payload);

  // Before the first frame: the client may have it open links to sessions of other servers.
  void allow_peers(PeerOptions options);

  // No link or process group, nor a thread of one, is left afterwards.
  void close_links();

  // Between frames: copies what has arrived of uploads to where it belongs.
  void write_arrived() { storages_.write_arrived(); }

  wire::Counters counters() const;

  uint64_t failures() const { return executor_.failures(); }

  // How many READ and QUERY messages were answered.
  uint64_t answers() const { return answers_; }

 private:
  using Handler = void (Interpreter::*)(wire::Reader&);
  // Null: an unknown tag.
  static Handler find_handler(wire::Tag tag);
  void skip(wire::Tag tag);

  void on_signature(wire::Reader& reader);
  void on_call(wire::Reader& reader);
  void on_context(wire::Reader& reader);
  void on_generator(wire::Reader& reader);
  void on_resize(wire::Reader& reader);
  void on_begin(wire::Reader& reader);
  void on_free(wire::Reader& reader);
  void on_read(wire::Reader& reader);
  void on_query(wire::Reader& reader);
  void on_thread(wire::Reader& reader);
  void on_go_on(wire::Reader& reader);
  void on_stream(wire::Reader& reader);

  void query_call(uint64_t request, wire::Reader& reader);
  void query_barrier(uint64_t request);
  void query_checked_call(uint64_t request, wire::Reader& reader);
  void query_generator(uint64_t request, wire::Reader& reader);
  void query_stream(uint64_t request, wire::Reader& reader);
  void query_event(uint64_t request, wire::Reader& reader);
  void query_memory(uint64_t request, wire::Reader& reader);
  void query_telemetry(uint64_t request, wire::Reader& reader);
  void query_profile(uint64_t request, wire::Reader& reader);
  void query_elapsed(uint64_t request, wire::Reader& reader);
  // server/handlers/direct_copies.cpp
  void query_peer(uint64_t request, wire::Reader& reader);
  void open_link(uint64_t request, const wire::PeerQuery& query);
  void send_to_peer(uint64_t request, const wire::PeerQuery& query);
  void receive_from_peer(uint64_t request, const wire::PeerQuery& query);
  // server/handlers/cached_uploads.cpp
  void query_cached_uploads(uint64_t request);
  void query_cached_upload(uint64_t request, wire::Reader& reader);
  void put_in(uint64_t storage, std::shared_ptr<Staging> staging);
  void apply_stream(const wire::StreamMessage& message);
  // Answers the request when a stream or event is done.
  Streams::OnDone answer_done(uint64_t request);
  // Waits until the devices are done. False: one failed, and the request is answered with that.
  bool finish_work(uint64_t request);
  // Answers with an error that stops no thread.
  void answer_failure(uint64_t request, std::exception_ptr cause, const char* what);
  void answer_view(const wire::Read& read);
  // What a reply with this value holds until it is sent.
  std::shared_ptr<const void> token_for(const at::Tensor& view, Entry& entry);
  void answer_from_device(uint64_t request, const at::Tensor& view, Entry& entry);
  void answer_in_pieces(uint64_t request, const at::Tensor& view, Entry& entry);
  const CallPlan& plan_at(uint64_t slot) const;

  const Devices& devices_;
  const OperatorTable& table_;
  Uploads& uploads_;
  Replies& replies_;
  CallLog* const call_log_;
  DeviceReads device_reads_;
  Streams streams_;  // after what its threads use
  const std::shared_ptr<std::atomic<uint64_t>> counted_ =
      std::make_shared<std::atomic<uint64_t>>(0);  // StorageLimits::others
  StorageTable storages_;
  Generators generators_;
  StoppedThreads threads_;
  CallProfile profile_;
  Executor executor_;
  const std::unique_ptr<Groups> groups_;
  std::vector<std::unique_ptr<const Operator>> operators_;   // by the client's numbers
  std::vector<std::unique_ptr<const CallPlan>> signatures_;  // by slot

  std::unique_ptr<PeerLinks> peers_;  // null: the server was started without --peers

  uint64_t signature_bytes_ = 0;  // of signatures_, and introductions
  uint64_t skipped_ = 0;          // messages with an unknown tag
  uint64_t answers_ = 0;

  // State of the current frame.
  wire::NameState names_;
  marshal::Slots slots_;
};

}  // namespace torch_remote::server
