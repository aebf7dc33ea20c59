#pragma once

#include <atomic>

#include <sys/types.h>

#include "base/session_page.h"
#include "server/session/lifetime.h"
#include "server/session/session.h"

namespace torch_remote::server {

// Blocks SIGTERM, in this thread and those that it starts, until watch_for_end(). To be called
// before other threads start.
void hold_sigterm() noexcept;

// When the session is used, for this process and, on its page, for the listener.
struct Use {
  Activity activity;
  SessionPage& page;
  std::atomic<bool> is_busy{false};

  void note() noexcept {
    activity.touch();
    page.note_use(Activity::now());
  }
};

// What ends the process of a session, besides its connection.
//
//   cause                         the process
//   the parent's process ends     leaves at once; also if that process cannot be watched
//   the client's process ends     leaves after kGrace: a killed client sends nothing, and processes
//                                 that it forked may keep its socket open
//   SIGTERM                       tells the client why and leaves, after kGrace at most
//   a limit of time is reached    the same, where no listener lives that watches the limits
struct EndCauses {
  pid_t parent = 0;  // 0: none, as for the next and for `listener`
  pid_t client = 0;
  LifetimeLimits limits;
  pid_t listener = 0;
};

// Starts the thread that waits for all of them. It runs until it ends the process. `session` is
// null until it exists.
void watch_for_end(const EndCauses& causes, Use& use, const std::atomic<Session*>& session);

}  // namespace torch_remote::server
