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

// What ServerOperators needs of a session.
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
      lacking;  // our arguments that its operator lacks: they must have their default
};

// Which of our operators a server can run. Operators of two versions of torch are matched by name
// and overload, arguments by name. With equal digests in the handshake all are equal. Thread-safe.
class ServerOperators {
 public:
  // Null: the server has the same operator. Else how it differs. Raises NotImplementedError, which
  // says what to do, if the server has none. May wait, without a lock: for the handshake, unless
  // the server is embedded and has our torch; once per session if the digests differ or another
  // library's operator is called; once for each operator that differs.
  const OperatorMatch* match(ServerFacts& server, const OperatorInfo& info);

 private:
  bool is_same(ServerFacts& server, const OperatorInfo& info) EXCLUDES(mutex_);
  const OperatorMatch* find(const OperatorInfo& info, bool& found) EXCLUDES(mutex_);
  const OperatorMatch* keep(const OperatorInfo& info, std::unique_ptr<OperatorMatch> match)
      EXCLUDES(mutex_);

  Mutex mutex_;
  bool has_asked_ GUARDED_BY(mutex_) = false;
  std::unordered_set<uint64_t> fingerprints_ GUARDED_BY(mutex_);  // of all its operators
  std::unordered_map<uint32_t, std::unique_ptr<const OperatorMatch>> matches_
      GUARDED_BY(mutex_);  // by OperatorInfo::id; null: equal
};

}  // namespace torch_remote::client
