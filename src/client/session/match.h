#pragma once

#include <ATen/core/ivalue.h>

#include "client/session/server_facts.h"

namespace torch_remote::client {

// Which of our operators a server can run. Operators of two versions of torch are matched by name
// and overload, arguments by name. With equal digests in the handshake all are equal.
//
// Null: the server has the same operator. Else how it differs. Raises NotImplementedError, which
// says what to do, if the server has none. May wait, without a lock: for the handshake, unless the
// server is embedded and has our torch; once per session if the digests differ or another library's
// operator is called; once for each operator that differs.
const OperatorMatch* match_operator(Session& session, const OperatorInfo& info);

// Raises NotImplementedError unless each argument that the server's operator lacks has its default.
// At every call, since numbers are not part of a signature.
void check_match(const OperatorMatch& match, const OperatorInfo& info,
                 c10::ArrayRef<c10::IValue> arguments, Session& session);

// Arguments equal to the schema's default: a server's operator may lack those.
std::vector<uint32_t> defaults_of(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_remote::client
