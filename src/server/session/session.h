#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/bytes/peer_links.h"
#include "server/bytes/reply.h"
#include "server/bytes/uploads.h"
#include "server/device/devices.h"
#include "server/executor/call_log.h"
#include "server/handlers/interpreter.h"
#include "transport/connection.h"
#include "transport/stream.h"

namespace torch_remote::server {

// Limit for frames that wait for the executor, with kFrameCost for each. Our client's window is
// smaller.
constexpr uint64_t kMaxQueuedBytes = uint64_t{256} << 20;

// One client's state on this server, after the handshake.
//
// The connection's reader thread queues frames. The executor, the thread that calls run(), applies
// them. The reader never waits for the executor, nor the executor for the network.
class Session : private transport::Connection::Handler {
 public:
  struct Hooks {
    std::function<void(bool)> on_work;   // executor: a frame begins (true) or is applied (false)
    std::function<void()> on_end;        // the reader thread's last call: the client is gone
    CallLog* call_log = nullptr;         // null: calls are not logged
    SessionPage* page = nullptr;         // null: figures are not published
    std::chrono::milliseconds lease{0};  // how long a resumable connection may be broken
    uint64_t max_memory = UINT64_MAX;    // for its storages
    std::optional<PeerOptions> peers;    // `serve --peers`; none: it connects to no other server
    UploadCache* cache = nullptr;        // null: uploads are not cached
    std::shared_ptr<const SharedFolders> files;  // null: the client may read none
    bool sends_shortages = false;                // errors have wire::Error::wanted and free
    bool sends_warnings = false;                 // of kernels, to the client; else they are logged
    // The lease of a session that holds nothing: its client left before its first call or tensor,
    // for example when it exited during the handshake.
    std::chrono::milliseconds unused_lease = std::chrono::seconds(10);
    uint64_t max_queued_bytes = kMaxQueuedBytes;
  };

  Session(std::unique_ptr<transport::Stream> stream, const Devices& devices,
          const OperatorTable& table, Hooks hooks, transport::Connection::Options options = {});
  ~Session() override;

  // Runs until the client closes, the connection ends or the client breaks the protocol. Logs
  // errors that a client can cause and does not throw them. True: the client has closed or is gone.
  bool run();

  // Any thread: continues over another stream, whose client has proven that it is this session's
  // and has received up to `client_received`. Sends it what was received here. Throws ProtocolError
  // or ConnectionError; then the stream is unusable.
  void resume(std::unique_ptr<transport::Stream> stream, uint64_t client_received);
  // Any thread: no client can resume any more. The session ends with its connection; at once when
  // that is broken.
  void expect_no_return();
  // Any thread: sends the client the reason and ends.
  void stop(const std::string& reason, std::chrono::milliseconds wait);

  wire::Counters counters() { return interpreter_.counters(); }

 private:
  struct ReceivedFrame {
    uint64_t sequence;
    std::vector<std::byte> payload;
  };

  // Waits for work. kArrivals: no frame waits, but bytes of uploads have arrived.
  enum class Work { kFrame, kArrivals, kEnd };
  Work next_work(ReceivedFrame& frame);
  void apply(const ReceivedFrame& frame);
  bool end_with(const std::string& reason);
  void report_end();
  void note_use();
  void publish_figures();
  // False: no client can resume.
  bool set_broken(bool is_broken);

  std::vector<std::byte> take_messages(uint32_t& calls) override;

  bool has_taken_all() override { return replies_.has_taken_all(); }

  void on_messages(uint64_t sequence, std::vector<std::byte> payload) override;
  std::span<std::byte> bulk_target(uint64_t lane, uint64_t offset, uint64_t length) override;
  void on_bulk(uint64_t lane, uint64_t offset, uint64_t length, bool last) override;
  void on_broken(std::exception_ptr cause, uint64_t received) override;
  void on_end(std::exception_ptr cause) noexcept override;

  const Hooks hooks_;
  Uploads uploads_;
  Replies replies_;
  Interpreter interpreter_;           // executor thread
  std::atomic<bool> is_used_{false};  // there was a call or a storage
  std::atomic<size_t> unapplied_frames_{0};

  Mutex mutex_;
  CondVar changed_;
  std::deque<ReceivedFrame> frames_ GUARDED_BY(mutex_);
  uint64_t queued_bytes_ GUARDED_BY(mutex_) = 0;
  bool has_arrivals_ GUARDED_BY(mutex_) = false;
  bool has_ended_ GUARDED_BY(mutex_) = false;
  std::string cause_ GUARDED_BY(mutex_);  // empty: the client closed
  bool is_broken_ GUARDED_BY(mutex_) = false;
  bool nobody_returns_ GUARDED_BY(mutex_) = false;

  Mutex resume_mutex_;  // one resume at a time; guards no member

  transport::Connection connection_;  // last: its threads use the members above
};

}  // namespace torch_remote::server
