#include "client/call/direct_copy.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/platform.h"
#include "client/call/upload.h"
#include "client/process/lines.h"
#include "client/process/records.h"
#include "client/session/session.h"
#include "client/session/submission.h"
#include "marshal/dtype.h"
#include "wire/peers.h"

namespace torch_remote::client {
namespace {

// So many threads copy between two servers at once; one more copies through this process.
constexpr unsigned kMostLinks = 4;
// After so many links that broke, copies between the two servers go through this process. One that
// cannot be opened is enough: a server takes five seconds to say so.
constexpr unsigned kMostFailures = 3;
constexpr const char* kLink = "a link between two servers";

bool has_peers(Session& session) {
  return (session.welcome().capabilities & wire::kPeersCapability) != 0;
}

void log_fallback(Session& one, Session& other, const std::string& reason) {
  if (log_enabled(LogLevel::kDebug))
    log(LogLevel::kDebug, "a copy between servers goes through the client",
        {{"one", one.describe(0)}, {"other", other.describe(0)}, {"reason", reason}});
}

// The links between sessions of this process: Note [Direct copies] in wire/peers.h. A link is used
// for one copy at a time. Thread-safe.
class PeerLinks {
 public:
  static PeerLinks& instance();

  // Both servers can have links, and opening one has not failed. May wait for the handshakes.
  bool may_connect(Session& one, Session& other);
  // A free link between the two, which is opened if there is none: then it waits for both. Empty:
  // the servers cannot reach each other, or there are as many links as allowed and all are used.
  std::optional<uint64_t> take(Session& one, Session& other);
  void give_back(Session& one, Session& other, uint64_t link);
  // For a link that may have bytes on their way, or that failed for this reason: it is closed.
  void drop(Session& one, Session& other, uint64_t link, const std::string& failure = "");

  // Tells both sessions to close a link, and waits for neither.
  static void close(Session& one, Session& other, uint64_t link);
  // Sends a query about a link and waits for the answer.
  static wire::PeerAnswer ask(Session& session, const wire::PeerQuery& query);

 private:
  struct Pair {
    std::vector<uint64_t> free;
    unsigned links = 0;     // with those that are used or being opened
    unsigned failures = 0;  // attempts to open a link, and links, that failed
  };

  using Key = std::pair<Session*, Session*>;
  static Key key_of(Session& one, Session& other);
  // Why there is no link; empty: it is open.
  static std::string open(Session& listening, Session& connecting, uint64_t link);

  Mutex mutex_;
  std::map<Key, Pair> pairs_ GUARDED_BY(mutex_);  // sessions are never destroyed
  uint64_t next_ GUARDED_BY(mutex_) = 1;
};

PeerLinks& PeerLinks::instance() {
  static auto* const links = new PeerLinks;  // leaks: tensors may be copied at exit
  return *links;
}

PeerLinks::Key PeerLinks::key_of(Session& one, Session& other) {
  return std::minmax(&one, &other);
}

bool PeerLinks::may_connect(Session& one, Session& other) {
  if (!has_peers(one) || !has_peers(other))
    return false;
  MutexLock lock(mutex_);
  return pairs_[key_of(one, other)].failures < kMostFailures;
}

wire::PeerAnswer PeerLinks::ask(Session& session, const wire::PeerQuery& query) {
  const auto body = session.query(wire::QueryKind::kPeer, kLink,
                                  [&](wire::Writer& writer) { encode(writer, query); });
  return decode_answer(session, body, [&](wire::Reader& reader) {
    return wire::decode_peer_answer(reader, query.action);
  });
}

std::string PeerLinks::open(Session& listening, Session& connecting, uint64_t link) {
  wire::PeerQuery query;
  query.link = link;
  random_bytes(query.ticket);
  query.action = wire::PeerAction::kListen;
  const wire::PeerAnswer listens = ask(listening, query);
  if (!listens.reason.empty())
    return listens.reason;
  query.action = wire::PeerAction::kConnect;
  query.address = listens.address;
  return ask(connecting, query).reason;
}

std::optional<uint64_t> PeerLinks::take(Session& one, Session& other) {
  uint64_t link = 0;
  {
    MutexLock lock(mutex_);
    Pair& pair = pairs_[key_of(one, other)];
    if (!pair.free.empty()) {
      link = pair.free.back();
      pair.free.pop_back();
      return link;
    }
    if (pair.links == kMostLinks || pair.failures >= kMostFailures)
      return std::nullopt;
    ++pair.links;
    link = next_++;
    ++next_;  // for the attempt in the other direction
  }
  try {
    const std::string reason = open(one, other, link);
    if (reason.empty())
      return link;
    close(one, other, link);
    const std::string reverse = open(other, one, link + 1);
    if (reverse.empty())
      return link + 1;
    drop(one, other, link + 1, reason + "; the other way round: " + reverse);
    MutexLock lock(mutex_);
    pairs_[key_of(one, other)].failures = kMostFailures;
    return std::nullopt;
  } catch (...) {
    drop(one, other, link);
    close(one, other, link + 1);
    throw;
  }
}

void PeerLinks::give_back(Session& one, Session& other, uint64_t link) {
  MutexLock lock(mutex_);
  pairs_[key_of(one, other)].free.push_back(link);
}

void PeerLinks::drop(Session& one, Session& other, uint64_t link, const std::string& failure) {
  {
    MutexLock lock(mutex_);
    Pair& pair = pairs_[key_of(one, other)];
    --pair.links;
    if (!failure.empty())
      ++pair.failures;
  }
  if (!failure.empty())
    log_fallback(one, other, failure);
  close(one, other, link);
}

void PeerLinks::close(Session& one, Session& other, uint64_t link) {
  wire::PeerQuery query;
  query.link = link;
  for (Session* const session : {&one, &other}) {
    const RequestPtr request = session->make_request({}, nullptr);
    if (session->link().is_lost()) {
      session->requests().forget(*request);
      continue;
    }
    Submission at(*session, IfLost::kWrite);
    wire::encode_query(at.writer(), {request->id, wire::QueryKind::kPeer},
                       [&] { encode(at.writer(), query); });
  }
}

constexpr const char* kWhat = "a copy to another server";

class DirectCopy {
 public:
  DirectCopy(const at::Tensor& destination, const at::Tensor& source, uint64_t link)
      : to_record_(*record_of(destination)),
        from_record_(*record_of(source)),
        to_(*session_of(to_record_)),
        from_(*session_of(from_record_)) {
    query_.link = link;
    query_.length = source.nbytes();
    to_offset_ = offset_of(*destination.unsafeGetTensorImpl(), to_record_) * destination.itemsize();
    query_.offset = offset_of(*source.unsafeGetTensorImpl(), from_record_);
    // In the order of its memory.
    query_.spec = marshal::spec_of(source.as_strided({source.numel()}, {1}));
  }

  // Why the link failed; empty: the bytes are there.
  std::string run() {
    from_.begin_call({nullptr, from_record_.name});
    to_.begin_call();
    query_.action = wire::PeerAction::kSend;
    std::string reason = ask(from_, from_record_);
    if (!reason.empty())
      return reason;
    query_.action = wire::PeerAction::kReceive;
    query_.offset = to_offset_;
    return ask(to_, to_record_);
  }

 private:
  std::string ask(Session& session, StorageRecord& record) {
    query_.storage = record.name;
    const RequestPtr request = session.make_request({}, nullptr);
    request->device = record.server_device;
    request->storage = record.name;
    const bool is_announced = record.announced.load(std::memory_order_relaxed);
    const CallSite site{is_announced ? 0 : current_line(), record.server_device};
    {
      Submission at(session);
      at.announce(record, site);
      at.use_current_stream(record.server_device);
      wire::encode_query(at.writer(), {request->id, wire::QueryKind::kPeer},
                         [&] { encode(at.writer(), query_); });
    }
    session.wait(request, kWhat);
    const auto decode = [&](wire::Reader& reader) {
      return wire::decode_peer_answer(reader, query_.action);
    };
    return decode_answer(session, request->body, decode).reason;
  }

  StorageRecord& to_record_;
  StorageRecord& from_record_;
  Session& to_;
  Session& from_;
  uint64_t to_offset_ = 0;  // bytes
  wire::PeerQuery query_;
};

}  // namespace

bool may_copy_directly(const at::Tensor& destination, const at::Tensor& source) {
  return source.nbytes() >= kDirectCopy &&
         PeerLinks::instance().may_connect(*session_of(*record_of(source)),
                                           *session_of(*record_of(destination)));
}

bool copy_directly(const at::Tensor& destination, const at::Tensor& source) {
  if (!may_copy_directly(destination, source))
    return false;
  check_exists(destination);
  Session& from = *session_of(*record_of(source));
  Session& to = *session_of(*record_of(destination));
  auto& links = PeerLinks::instance();
  const auto link = links.take(from, to);
  if (!link)
    return false;
  std::string failure;
  try {
    failure = DirectCopy(destination, source, *link).run();
  } catch (...) {
    links.drop(from, to, *link);  // bytes may still be on their way
    throw;
  }
  if (failure.empty())
    links.give_back(from, to, *link);
  else
    links.drop(from, to, *link, failure);
  return failure.empty();
}

}  // namespace torch_remote::client
