#pragma once

#include <atomic>
#include <cstdint>

namespace torch_remote::client {

// Counters of one session, for statistics only: relaxed.
struct Counters {
  using Count = std::atomic<uint64_t>;
  Count calls{0};       // CALL messages encoded
  Count syncs{0};       // times a thread waited for the server
  Count bytes_sent{0};  // messages at encoding, headers when a frame is taken
  Count signatures_sent{0};
  Count inferred_by_meta{0};    // cache misses that a Python Meta kernel answered
  Count inferred_by_server{0};  // cache misses that the server answered
};

}  // namespace torch_remote::client
