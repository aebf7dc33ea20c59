#include "client/session/answers.h"

namespace torch_remote::client {

void refuse_answer(Session& session, const ProtocolError& error) {
  {
    WithoutGil without_gil;
    session.link().end_and_close(ErrorClass::kProtocol, error.what());
  }
  // Raises, because the session has ended.
  session.submit(0, [](wire::Writer&, wire::NameState&, SignatureTable&) { return false; });
  throw InternalError("a session that was ended takes messages");
}

}  // namespace torch_remote::client
