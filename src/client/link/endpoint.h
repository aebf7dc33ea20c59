#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "transport/stream.h"

namespace torch_remote::client {

// A server and how to reach it. client/link/open.h fills it in, a session uses it.
struct Endpoint {
  using Open = std::function<std::unique_ptr<transport::Stream>()>;
  using Redial = std::function<std::unique_ptr<transport::Stream>(
      std::chrono::steady_clock::time_point deadline)>;

  std::string url;  // for messages
  Open open;
  Redial redial = nullptr;  // opens another stream after a loss; none: not possible
  std::function<void()> clean_up = nullptr;  // called when the session has been stopped
  // Why the process that this side has started has ended, the server's or that of its connection;
  // empty if it has not, or if that is no news.
  std::function<std::string()> post_mortem = nullptr;
  std::string token;  // may be empty
  // The server listens already: it answers soon, and can be dialled again after a cut handshake.
  bool has_listener = false;
  // The server was built with this extension, so it has the same operators.
  bool has_our_torch = false;
};

}  // namespace torch_remote::client
