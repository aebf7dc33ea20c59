#include "client/process/sent_sources.h"

#include "client/process/process.h"

namespace torch_remote::client {

SentSources& SentSources::instance() {
  static auto* const sources = new SentSources;
  return *sources;
}

std::shared_ptr<const void> SentSources::keep(const c10::Storage& storage) {
  free_done();
  return {new c10::Storage(storage), [this](c10::Storage* done) {
            MutexLock lock(mutex_);
            done_.emplace_back(done);
          }};
}

void SentSources::free_done() {
  if (in_forked_child())  // another thread may have held the lock
    return;
  std::vector<std::unique_ptr<c10::Storage>> done;  // destroyed without the lock
  MutexLock lock(mutex_);
  done.swap(done_);
}

}  // namespace torch_remote::client
