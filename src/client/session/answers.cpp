#include "client/session/answers.h"

namespace torch_remote::client {

void refuse_answer(Session& session, const ProtocolError& error) {
  {
    WithoutGil without_gil;
    session.link().end_and_close(ErrorClass::kProtocol, error.what());
  }
  session.check_not_lost();
  throw error;  // not reached: the session has ended
}

}  // namespace torch_remote::client
