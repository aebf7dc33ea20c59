#include "client/session/match.h"

#include <algorithm>

#include <torch/version.h>

#include "client/operators/operator.h"
#include "client/session/session.h"
#include "marshal/schemas.h"
#include "wire/operators.h"

namespace torch_remote::client {
namespace {

wire::OperatorAnswer ask_operator(Session& session, const OperatorInfo& info) {
  const auto body = session.query(wire::QueryKind::kOperator, info.name, [&](wire::Writer& writer) {
    encode(writer, wire::OperatorQuery{info.introduction.name, info.introduction.overload});
  });
  return decode_answer(session, body, wire::decode_operator_answer);
}

std::unique_ptr<OperatorMatch> compare(const OperatorInfo& info,
                                       const wire::OperatorAnswer& answer) {
  auto match = std::make_unique<OperatorMatch>();
  if (!answer.is_known) {
    match->refusal = answer.reason;
    return match;
  }
  const auto& ours = info.introduction.arguments;
  for (uint32_t i = 0; i < ours.size(); ++i)
    if (std::ranges::find(answer.arguments, ours[i]) == answer.arguments.end())
      match->lacking.push_back(i);
  return match;
}

const OperatorMatch* checked(const OperatorMatch* match, Session& session,
                             const OperatorInfo& info) {
  if (match == nullptr || match->refusal.empty())
    return match;
  const std::string hint =
      info.is_foreign
          ? "; if it is defined in Python, for other devices only, call it on tensor.cpu()"
          : std::string("; this process has torch ") + TORCH_VERSION;
  TORCH_CHECK_NOT_IMPLEMENTED(false, info.name, " on ", session.describe(0), ": ", match->refusal,
                              hint);
}

bool has_same(Session& session, const OperatorInfo& info) {
  ServerOperators& known = session.operators();
  if (!known.has_fingerprints()) {
    const auto body = session.query(wire::QueryKind::kOperators, "operators");
    known.add_fingerprints(decode_answer(session, body, wire::decode_fingerprints));
  }
  return known.has_fingerprint(wire::schema_fingerprint(c10::toString(info.handle.schema())));
}

bool equals_default(const OperatorInfo& info, uint32_t index, const c10::IValue& argument) {
  const auto& value = info.handle.schema().arguments()[index].default_value();
  if (!value.has_value() || argument.isTensor() || argument.isTensorList())
    return false;
  return argument.isNone() ? value->isNone() : !value->isNone() && *value == argument;
}

}  // namespace

const OperatorMatch* match_operator(Session& session, const OperatorInfo& info) {
  const bool is_aten = info.introduction.name.starts_with(marshal::kAten);
  if (is_aten && session.link().endpoint().has_our_torch)
    return nullptr;
  ServerOperators& known = session.operators();
  if (const auto match = known.find(info.id))
    return checked(*match, session, info);
  if (is_aten && session.welcome().operators == marshal::aten_digest())
    return nullptr;
  if (has_same(session, info))
    return known.keep(info.id, nullptr);
  auto match = compare(info, ask_operator(session, info));
  return checked(known.keep(info.id, std::move(match)), session, info);
}

void check_match(const OperatorMatch& match, const OperatorInfo& info,
                 c10::ArrayRef<c10::IValue> arguments, Session& session) {
  for (const uint32_t index : match.lacking) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        equals_default(info, index, arguments[index]), info.name, " on ", session.describe(0),
        ": the server's torch ", session.welcome().torch_version, " does not have the argument ",
        info.introduction.arguments[index],
        ", so it must keep its default; for another value the server needs this process's torch");
  }
}

std::vector<uint32_t> defaults_of(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<uint32_t> defaults;
  for (uint32_t i = 0; i < arguments.size(); ++i)
    if (equals_default(info, i, arguments[i]))
      defaults.push_back(i);
  return defaults;
}

}  // namespace torch_remote::client
