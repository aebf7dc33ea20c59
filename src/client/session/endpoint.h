#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "transport/stream.h"

namespace torch_remote::client {

// A server, and the way to it. Front doors and providers fill it in (client/session/open.h); a session uses it.
struct Endpoint {
  using Open = std::function<std::unique_ptr<transport::Stream>()>;
  using Redial = std::function<std::unique_ptr<transport::Stream>(
      std::chrono::steady_clock::time_point deadline)>;

  std::string url;  // for messages
  Open open;
  Redial redial = nullptr;  // the same once more, after the connection was lost; none: it cannot
  std::function<void()> clean_up = nullptr;  // when the session has been stopped
  // Why the server's process is gone, where this side can know; else empty.
  std::function<std::string()> post_mortem = nullptr;
  std::string token;  // may be empty
  // The server listens already: it answers soon, and another connection may get through where one
  // was cut in the first handshake.
  bool has_listener = false;
  // The server was built with this extension: it has the same operators.
  bool has_our_torch = false;
};

}  // namespace torch_remote::client
