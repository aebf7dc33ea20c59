#include "client/session/server_operators.h"

#include <algorithm>

#include <torch/version.h>

#include "client/operators/operator.h"
#include "marshal/schemas.h"
#include "wire/operators.h"

namespace torch_remote::client {
namespace {

wire::OperatorAnswer ask_operator(ServerFacts& server, const OperatorInfo& info) {
  const auto body = server.query(wire::QueryKind::kOperator, info.name, [&](wire::Writer& writer) {
    encode(writer, wire::OperatorQuery{info.introduction.name, info.introduction.overload});
  });
  wire::Reader reader(body);
  return wire::decode_operator_answer(reader);
}

std::unique_ptr<OperatorMatch> compare(const OperatorInfo& info,
                                       const wire::OperatorAnswer& answer) {
  auto match = std::make_unique<OperatorMatch>();
  if (!answer.is_known) {
    match->refusal = answer.reason;
    return match;
  }
  const auto& ours = info.introduction.arguments;
  for (uint32_t i = 0; i < ours.size(); ++i) {
    const auto& theirs = answer.arguments;
    if (std::find(theirs.begin(), theirs.end(), ours[i]) == theirs.end())
      match->lacking.push_back(i);
  }
  return match;
}

const OperatorMatch* checked(const OperatorMatch* match, ServerFacts& server,
                             const OperatorInfo& info) {
  if (match == nullptr || match->refusal.empty())
    return match;
  const std::string hint =
      info.is_foreign
          ? "; if it is defined in Python, for other devices only, call it on tensor.cpu()"
          : std::string("; this process has torch ") + TORCH_VERSION;
  TORCH_CHECK_NOT_IMPLEMENTED(false, info.name, " on ", server.describe(0), ": ", match->refusal,
                              hint);
}

}  // namespace

bool ServerOperators::is_same(ServerFacts& server, const OperatorInfo& info) {
  bool has_asked = false;
  {
    MutexLock lock(mutex_);
    has_asked = has_asked_;
  }
  std::vector<uint64_t> fingerprints;
  if (!has_asked) {
    const auto body = server.query(wire::QueryKind::kOperators, "operators", nullptr);
    wire::Reader reader(body);
    fingerprints = wire::decode_fingerprints(reader);
  }
  const uint64_t ours = wire::schema_fingerprint(c10::toString(info.handle.schema()));
  MutexLock lock(mutex_);
  has_asked_ = true;
  fingerprints_.insert(fingerprints.begin(), fingerprints.end());
  return fingerprints_.contains(ours);
}

const OperatorMatch* ServerOperators::find(const OperatorInfo& info, bool& found) {
  MutexLock lock(mutex_);
  const auto at = matches_.find(info.id);
  found = at != matches_.end();
  return found ? at->second.get() : nullptr;
}

const OperatorMatch* ServerOperators::keep(const OperatorInfo& info,
                                           std::unique_ptr<OperatorMatch> match) {
  MutexLock lock(mutex_);
  return matches_.try_emplace(info.id, std::move(match)).first->second.get();
}

const OperatorMatch* ServerOperators::match(ServerFacts& server, const OperatorInfo& info) {
  const bool is_aten = info.introduction.name.starts_with(marshal::kAten);
  if (is_aten && server.has_our_torch())
    return nullptr;
  bool found = false;
  if (const OperatorMatch* known = find(info, found); found)
    return checked(known, server, info);
  const wire::Welcome& welcome = server.welcome();
  if (is_aten && welcome.operators == marshal::aten_digest())
    return nullptr;
  if (is_same(server, info))
    return keep(info, nullptr);
  return checked(keep(info, compare(info, ask_operator(server, info))), server, info);
}

}  // namespace torch_remote::client
