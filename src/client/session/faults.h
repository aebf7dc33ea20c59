#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "client/process/lines.h"
#include "client/session/requests.h"
#include "wire/messages.h"

namespace torch_remote::client {

struct Failure {
  wire::Error error;
  std::optional<CallSite> site;  // of the failed call, if still known
  bool is_raised = false;        // by synchronize(), or by a use of a missing value
  bool has_ended = false;        // its thread has, or goes on: it is not stopped any more
};

// Failures that were not reported to their threads, and which calls were discarded. Thread-safe.
// See Note [Fail-stop] in wire/messages.h.
class Faults {
 public:
  // Reader thread: a call has failed and stopped its thread.
  void add(Failure failure);

  // Whether a thread is stopped and its failure was not reported. Checked before every call.
  bool has_any() const { return count_.load(std::memory_order_relaxed) != 0; }

  bool has(uint64_t thread);
  // Removes and returns the failure that has stopped this thread, to be reported to it.
  std::optional<Failure> take(uint64_t thread);
  // A failure that was taken but not raised: raise_oldest() and unreported() find it.
  void keep_unreported(Failure failure);
  // The threads that have ended since the last call. raise_oldest() and unreported() still find
  // their failures.
  std::vector<uint64_t> take_ended();
  // The oldest failure that was not raised, marked as raised, and how many more there are. Its
  // thread, if it lives, gets the report at its own next call.
  std::optional<Failure> raise_oldest(uint64_t& others);
  // The failure of this call was raised, for a use of a missing value.
  void note_raised(const wire::Error& error);
  // Failures that were never raised, oldest first.
  std::vector<Failure> unreported();
  std::optional<CallSite> site_of(uint64_t call);

  // What was reported to a thread: the failure of `call`. What the calls first … last were to make
  // is missing. Calls of other threads are in that range too, so it is only suspected.
  struct Report {
    uint64_t call;
    uint64_t first;
    uint64_t last;
    uint64_t next_request;  // earlier requests were made before the report
  };

  void add_discarded(const Report& report);
  // Whether the failed request was made before the same failure was reported to its thread.
  bool was_reported(const Request& request);

  // Whether what this call made may be missing. 0 (made by no call): no.
  bool may_be_discarded(uint64_t call) {
    return call != 0 && call <= last_discarded_.load(std::memory_order_relaxed) &&
           is_discarded(call);
  }

  bool has_discarded() const { return last_discarded_.load(std::memory_order_relaxed) != 0; }

  void clear();

 private:
  bool is_discarded(uint64_t call);
  std::vector<Failure>::iterator find(uint64_t thread) REQUIRES(mutex_);

  std::atomic<size_t> count_{0};             // threads that are stopped
  std::atomic<uint64_t> last_discarded_{0};  // the highest call that may have been discarded
  Mutex mutex_;
  // One for each thread that is stopped, and a few of threads that have ended.
  std::vector<Failure> failures_ GUARDED_BY(mutex_);
  std::vector<Report> discarded_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
