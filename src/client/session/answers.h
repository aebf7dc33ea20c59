#pragma once

#include <cstddef>
#include <vector>

#include "base/error.h"
#include "client/session/session.h"
#include "wire/codec.h"

namespace torch_remote::client {

// For an answer that no correct server gives. Ends the session, as the reader thread does when it
// finds invalid bytes, and raises SessionLost.
[[noreturn]] void refuse_answer(Session& session, const ProtocolError& error);

// Decodes the body of an answer that only the thread which asked can check. `decode` takes a
// wire::Reader.
template <typename Decode>
auto decode_answer(Session& session, const std::vector<std::byte>& body, Decode&& decode) {
  try {
    wire::Reader reader(body);
    auto answer = decode(reader);
    reader.finish();
    return answer;
  } catch (const ProtocolError& error) {
    refuse_answer(session, error);
  }
}

}  // namespace torch_remote::client
