#include "server/groups/exchange_store.h"

#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr std::chrono::seconds kPatience{20};

// A store in which an engine, another thread, waits for these keys.
class Waiting {
 public:
  explicit Waiting(std::vector<std::string> keys)
      : store_(c10::make_intrusive<ExchangeStore>(
            kPatience, [this](const wire::GroupAnswer&) { told_.set_value(); })),
        engine_([this, keys = std::move(keys)] {
          try {
            store_->wait(keys);
          } catch (const std::exception&) {
            // The test is over.
          }
        }) {
    told_.get_future().wait_for(kPatience);
  }

  ~Waiting() {
    store_->abandon();
    engine_.join();
  }

  ExchangeStore& store() { return *store_; }

 private:
  std::promise<void> told_;
  const c10::intrusive_ptr<ExchangeStore> store_;
  std::thread engine_;
};

std::vector<wire::GroupEntry> entry(const std::string& key, size_t bytes = 1) {
  return {{key, std::vector<std::byte>(bytes)}};
}

TEST(ExchangeStore, AClientBringsOnlyWhatItWasAskedFor) {
  EXPECT_THROW(Waiting({"a"}).store().bring(entry("b")), ProtocolError);
  EXPECT_TRUE(Waiting({"a"}).store().bring(entry("a")));
  std::vector<wire::GroupEntry> twice = entry("a");
  twice.push_back(twice.front());
  EXPECT_THROW(Waiting({"a"}).store().bring(twice), ProtocolError);
}

TEST(ExchangeStore, TheBytesOfAStoreAreLimited) {
  std::vector<std::string> keys;
  std::vector<wire::GroupEntry> entries;
  for (uint64_t i = 0; i < kMaxStoreBytes / wire::kMaxGroupValue; ++i) {
    keys.push_back(std::to_string(i));
    entries.push_back(entry(keys.back(), wire::kMaxGroupValue).front());
  }
  EXPECT_THROW(Waiting(keys).store().bring(entries), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::server
