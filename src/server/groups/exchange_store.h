#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/mutex.h"
#include "wire/group.h"

namespace torch_remote::server {

// Limit for the keys and values of one store. With values of at most 64 KiB (kMaxGroupValue), Gloo
// needs less: each of at most about 500 ranks has a value with an address for every other rank.
constexpr uint64_t kMaxStoreBytes = uint64_t{32} << 20;

// The store by which an engine finds the other ranks: Note [Process groups] in wire/group.h. It
// has what the engine has put in and what the client has brought. When the engine waits for
// another key, the client is told. Thread-safe: the engine's threads use the store, the executor
// brings values.
class ExchangeStore : public c10d::Store {
 public:
  using Tell = std::function<void(const wire::GroupAnswer&)>;

  // `tell` is called once for each bring(), and for the beginning.
  ExchangeStore(std::chrono::milliseconds timeout, Tell tell);

  // Executor thread: values for the missing keys. False: nobody waits for any. Throws ProtocolError
  // for a key that was not missing in the last answer.
  bool bring(std::vector<wire::GroupEntry> entries);
  // What the client has not been told yet, for its last answer. From then on a missing key is an
  // error.
  std::vector<wire::GroupEntry> finish();
  // Whoever waits for a key gets an error.
  void abandon();

  // c10d::Store, as far as engines use it
  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<std::string> missing_of(const std::vector<std::string>& keys) const REQUIRES(mutex_);
  // False: there is nothing to tell. The client is asked already, or the keys are there.
  bool take_answer(const std::vector<std::string>& keys, wire::GroupAnswer& answer);
  void wait_for_change(Clock::time_point end, const std::string& key);

  const Tell tell_;
  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<std::string, std::vector<uint8_t>> values_ GUARDED_BY(mutex_);
  uint64_t brought_bytes_ GUARDED_BY(mutex_) = 0;  // of keys and values that the client brought
  std::unordered_set<std::string> missing_
      GUARDED_BY(mutex_);  // in the last answer, not yet brought
  std::vector<wire::GroupEntry> untold_ GUARDED_BY(mutex_);
  bool is_asked_ GUARDED_BY(mutex_) = true;  // the client waits for an answer
  bool is_over_ GUARDED_BY(mutex_) = false;  // the client brings nothing more
};

}  // namespace torch_remote::server
