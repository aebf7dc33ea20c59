#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/platform.h"
#include "server/session/handshake.h"
#include "wire/handshake.h"

namespace torch_remote::server {

// Note [Executed sessions]
//
// The listener executes its own program for each session, so that each has an address layout,
// mappings and descriptors of its own. It keeps one such process ready, the spare: libtorch and the
// libraries are loaded and the devices chosen before a client comes. The two talk over one
// socket that keeps message boundaries:
//
//   to the listener   ready | failed reason        once, before there is a client
//   to the session    Handover, client's socket    once; and a file, with `--log-calls`
//   to the listener   both HELLO bodies            once, where clients need a token
//   to the session    Proofs
//   to the session    preamble, client's socket    for each client that resumes: session/resume.h
//
// Only the listener knows the token. It makes proofs for a session once, and then shuts its side of
// reading: who takes the session over after its client has proven itself learns no token, gets no
// proof, and sends no descriptor. What the listener reads here may be a stranger's words: it reads
// without waiting, a message of limited length at a time, takes no descriptors, checks each length.

// Descriptors of a session's process. It closes the second when the page is mapped.
inline constexpr int kControlDescriptor = kInheritedDescriptor;
inline constexpr int kPageDescriptor = kInheritedDescriptor + 1;

// What a session's process is told when it gets its client. Both ends are the same program.
struct Handover {
  std::array<std::byte, wire::kPreambleBytes> preamble{};
  wire::Secret secret{};
  std::array<char, sizeof(wire::Secret) + wire::kShortToken> resume_key{};
  uint64_t resume_key_bytes = 0;
  uint64_t route = 0;
  wire::Digest cache_owner{};  // of uploads that the session may use and add
  int64_t server_start = 0;    // of Activity
  int32_t listener = 0;        // its process
  int32_t has_token = 0;       // clients must prove that they know it
};

// The session's end.
void tell_ready(const Fd& control);
void tell_failure(const Fd& control, const std::string& reason);

struct HandedOver {
  Handover told;
  Fd client;
  Fd call_log;  // empty: calls are not logged
};

// Waits for the client. Nothing: the listener is gone.
std::optional<HandedOver> receive_client(const Fd& control);
// The listener makes them. The descriptor must stay open while the result is used.
MakeProofs proofs_by_listener(int control);

// The listener's end. None of these waits.
struct Report {
  enum class Kind { kNone, kReady, kFailed };
  Kind kind = Kind::kNone;
  std::string reason;  // kFailed: at most kMaxReason bytes
  static constexpr size_t kMaxReason = 1000;
};

// kNone also where the process has ended.
Report read_report(const Fd& control);
// `call_log` is the file for the session's calls, and may be empty.
Passed hand_over(const Fd& control, const Handover& told, const Fd& client, const Fd& call_log);
// Reads a request for proofs and answers it. False: nothing has come yet.
bool answer_proof_request(const Fd& control, const std::string& token);

}  // namespace torch_remote::server
