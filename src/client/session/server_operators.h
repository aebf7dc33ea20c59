#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "wire/handshake.h"
#include "wire/messages.h"

namespace torch_remote::client {

struct OperatorInfo;

// What ServerOperators asks of a session.
class ServerFacts {
 public:
  virtual ~ServerFacts() = default;
  // The server was built with this extension, so that it has the same operators.
  virtual bool has_our_torch() const = 0;
  virtual const wire::Welcome& welcome() = 0;
  virtual std::string describe(uint8_t device) = 0;
  virtual std::vector<std::byte> query(wire::QueryKind kind, const std::string& what,
                                       const std::function<void(wire::Writer&)>& write_body) = 0;
};

// How the server's form of an operator differs from ours.
struct OperatorMatch {
  std::string refusal;  // not empty: why the server cannot run it
  std::vector<uint32_t>
      lacking;  // our arguments that its torch does not have: they must equal their default
};

// Which of our operators a session's server can run. Two versions of torch are matched by name and overload, then
// arguments by name; equal digests in the handshake make all of that unnecessary. Thread-safe.
class ServerOperators {
 public:
  // Null: the server has the very same operator. Else how its own differs. Raises NotImplementedError, with what to do,
  // when it has none. May wait, without a lock: for the handshake, unless the server is embedded and has our torch; once
  // in a session if the digests differ or another library's operator is called; once for each operator that differs.
  const OperatorMatch* match(ServerFacts& server, const OperatorInfo& info);

 private:
  bool is_same(ServerFacts& server, const OperatorInfo& info) EXCLUDES(mutex_);
  const OperatorMatch* find(const OperatorInfo& info, bool& found) EXCLUDES(mutex_);
  const OperatorMatch* keep(const OperatorInfo& info, std::unique_ptr<OperatorMatch> match)
      EXCLUDES(mutex_);

  Mutex mutex_;
  bool has_asked_ GUARDED_BY(mutex_) = false;
  std::unordered_set<uint64_t> fingerprints_ GUARDED_BY(mutex_);  // of all that it has
  std::unordered_map<uint32_t, std::unique_ptr<const OperatorMatch>> matches_
      GUARDED_BY(mutex_);  // by OperatorInfo::id; null: the same
};

}  // namespace torch_remote::client
