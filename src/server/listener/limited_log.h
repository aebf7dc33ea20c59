#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace torch_remote::server {

// Lines of the listener that anybody who can connect can cause; SessionLogs limits those of
// sessions. Of each event at most kMostLines are written in kWindow; the others are counted, and
// one more line says how many were left out. So a stranger can neither fill the disk nor hide that
// it was there. Of an event of clients that are let in, kMostLines are written for each peer, and
// kMostOfAll in all: so none hides what happens to others. Confined to one thread.
class LimitedLog {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr uint64_t kMostLines = 10;
  static constexpr uint64_t kMostOfAll = 100;
  static constexpr std::chrono::seconds kWindow{60};

  // As log(). `event` is a text of ours, never the peer's: each one is remembered. `peer` (of
  // identify_peer()) is the client that was let in; empty: strangers can cause it too.
  void write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {},
             std::string_view peer = {});
  // Writes how many lines were left out in windows that are over, or in all when `at_end`. write()
  // does this too.
  void tell_left_out(bool at_end = false);

  // write() and tell_left_out() use these; tests call them with a time. False: the line is left
  // out.
  bool admit(std::string_view event, std::string_view peer, Clock::time_point now);
  // Events with the number of lines that were left out, once.
  std::vector<std::pair<std::string, uint64_t>> take_left_out(Clock::time_point now);

 private:
  struct Window {
    Clock::time_point end;
    uint64_t lines = 0;
    uint64_t left_out = 0;
    std::map<std::string, uint64_t, std::less<>> lines_of_peers{};  // kMostOfAll entries at most
  };

  std::map<std::string, Window, std::less<>> windows_;
};

}  // namespace torch_remote::server
