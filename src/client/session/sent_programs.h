#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/process/lines.h"

namespace torch_remote::client {

// The programs that the server has, the least recently used first to go. Externally synchronised:
// by the submit lock.
class SentPrograms {
 public:
  struct Size {
    uint64_t steps = 0;
    uint64_t bytes = 0;  // of their slots, storages and signatures
  };

  // False: the server does not have it.
  bool use(uint64_t program);
  // It is sent next. Returns those which the server must drop before that.
  std::vector<uint64_t> add(uint64_t program, Size size);
  // False: the server does not have it.
  bool remove(uint64_t program);

  void clear() { *this = SentPrograms(); }

 private:
  struct Sent {
    uint64_t program;
    Size size;
  };

  using Position = std::list<Sent>::iterator;

  bool is_full(Size more) const;
  void forget(Position position);

  std::list<Sent> by_use_;  // the least recently used first
  std::unordered_map<uint64_t, Position> positions_;
  Size all_;
};

// The user's lines of the steps of programs, for errors and profiles. Thread-safe.
class ProgramSites {
 public:
  // The site of a change of settings has the operation 0.
  void add(uint64_t program, std::vector<CallSite> steps);
  // The program is gone. An error of it may still come: the lines of the last ones stay.
  void retire(uint64_t program);
  std::optional<CallSite> find(uint64_t program, uint64_t step);

  // The numbered message `call`, later than those before, runs the program.
  void note_run(uint64_t call, uint64_t program);
  // The calls of the run in their order; none if it is too long ago.
  std::vector<CallSite> calls_of_run(uint64_t call);

 private:
  static constexpr size_t kRetired = 64;
  static constexpr size_t kRuns = 1 << 16;

  struct RunOf {
    uint64_t call;
    uint64_t program;
  };

  Mutex mutex_;
  std::deque<RunOf> runs_ GUARDED_BY(mutex_);  // the last ones
  std::unordered_map<uint64_t, std::vector<CallSite>> steps_ GUARDED_BY(mutex_);
  std::list<uint64_t> retired_ GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace torch_remote::client
