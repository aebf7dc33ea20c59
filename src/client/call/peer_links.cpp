#include "client/call/peer_links.h"

#include <algorithm>

#include "base/log.h"
#include "base/platform.h"
#include "client/session/answers.h"
#include "client/session/submission.h"

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

}  // namespace

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

}  // namespace torch_remote::client
