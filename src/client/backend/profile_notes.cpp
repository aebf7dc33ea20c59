#include "client/backend/profile_notes.h"

#include <utility>

#include "base/mutex.h"

namespace torch_remote::client {
namespace {

struct Notes {
  Mutex mutex;
  std::vector<std::string> texts GUARDED_BY(mutex);
};

Notes& notes() {
  static Notes& all = *new Notes;  // leaks: profiles may end while the process does
  return all;
}

}  // namespace

void add_profile_note(std::string text) {
  MutexLock lock(notes().mutex);
  notes().texts.push_back(std::move(text));
}

std::vector<std::string> take_profile_notes() {
  MutexLock lock(notes().mutex);
  return std::exchange(notes().texts, {});
}

}  // namespace torch_remote::client
