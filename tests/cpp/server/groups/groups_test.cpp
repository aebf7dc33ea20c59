#include "server/groups/groups.h"

#include <thread>

#include <gtest/gtest.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"
#include "marshal/schemas.h"
#include "server/executor/storage_table.h"
#include "server/groups/collectives.h"
#include "server/groups/engine.h"

namespace torch_remote::server {
namespace {

using at::Tensor;
using at::TensorList;
using marshal::Reduction;

constexpr auto kPatience = std::chrono::seconds(30);

// One session's groups, and a client that shares a store with the others.
class Rank {
 public:
  explicit Rank(bool may_connect = true) : groups_(devices_, replies_, may_connect) {
    register_collectives();
  }

  Groups& groups() { return groups_; }

  struct Reply {
    std::optional<wire::GroupAnswer> answer;
    wire::Error error;
  };

  Reply ask(wire::GroupQuery query) {
    groups_.query(++request_, std::move(query));
    return next_reply();
  }

  static wire::GroupQuery opening(int rank, int size, uint64_t timeout = 10000) {
    wire::GroupQuery query;
    query.group = 1;
    query.rank = static_cast<uint64_t>(rank);
    query.size = static_cast<uint64_t>(size);
    query.timeout = timeout;
    query.address = "127.0.0.1";
    return query;
  }

  // What the client does. Gives the error, empty if it is open.
  std::string open(c10d::Store& store, wire::GroupQuery query) {
    while (true) {
      const Reply reply = ask(query);
      if (!reply.answer)
        return reply.error.message;
      for (const wire::GroupEntry& entry : reply.answer->entries)
        store.set(entry.key, bytes_of<uint8_t>(entry.value));
      if (reply.answer->is_open)
        return {};
      query.action = wire::GroupAction::kGoOn;
      query.entries.clear();
      for (const std::string& key : reply.answer->missing)
        query.entries.push_back({key, bytes_of<std::byte>(store.get(key))});
    }
  }

 private:
  template <typename To, typename From>
  static std::vector<To> bytes_of(const std::vector<From>& from) {
    const auto* const bytes = reinterpret_cast<const To*>(from.data());
    return {bytes, bytes + from.size()};
  }

  // Waits for it: another thread may answer.
  Reply next_reply() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    std::vector<std::byte> payload = replies_.take();
    while (payload.empty() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      payload = replies_.take();
    }
    wire::Reader reader(payload);
    wire::ReceivedMessage message = wire::next_message(reader);
    Reply reply;
    if (message.tag == wire::Tag::kError) {
      wire::decode_error_request(message.body);
      reply.error = wire::decode_error(message.body);
      return reply;
    }
    wire::Reader body(wire::decode_reply(message.body).body);
    reply.answer = body.empty() ? wire::GroupAnswer() : wire::decode_group_answer(body);
    return reply;
  }

  const Devices devices_{c10::DeviceType::CPU, 1};
  Replies replies_;
  Groups groups_;
  uint64_t request_ = 0;
};

template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<void(Arguments...)>().call(
      arguments...);
}

void all_reduce(TensorList tensors, int64_t op) {
  call<int64_t, TensorList, int64_t>("torch_remote::all_reduce_", 1, tensors, op);
}

class GroupsWithGloo : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gloo())
      GTEST_SKIP() << "built without the headers of Gloo";
  }
};

// Runs `body(rank)` in a thread for each of two ranks, with their groups open.
template <typename Body>
void with_two_ranks(Body&& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank ranks[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const c10::InferenceMode inference_mode;
      ASSERT_EQ(ranks[rank].open(*store, Rank::opening(rank, 2)), "");
      const Groups::Scope scope(ranks[rank].groups());
      body(rank);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(GroupsWithGloo, TwoRanksReduceAndGather) {
  with_two_ranks([](int rank) {
    Tensor sum = at::full({4, 2}, rank + 1.0);
    all_reduce(sum.t(), static_cast<int64_t>(Reduction::kSum));  // is not contiguous
    EXPECT_TRUE(sum.eq(3).all().item<bool>());
    std::vector<Tensor> gathered{at::empty({2}), at::empty({2})};
    call<int64_t, TensorList, const Tensor&>("torch_remote::all_gather", 1, gathered,
                                             at::full({2}, rank + 5.0));
    EXPECT_EQ(gathered[0][0].item<double>(), 5);
    EXPECT_EQ(gathered[1][1].item<double>(), 6);
  });
}

TEST_F(GroupsWithGloo, RanksThatSendFirstAndReceiveAfterwardsDoNotWaitForEachOther) {
  with_two_ranks([](int rank) {
    call<int64_t, const Tensor&, int64_t, int64_t>("torch_remote::send", 1,
                                                   at::full({3}, rank + 1.0), 1 - rank, 0);
    Tensor received = at::empty({3});
    call<int64_t, TensorList, int64_t, int64_t>("torch_remote::recv", 1, received, 1 - rank, 0);
    EXPECT_EQ(received[2].item<double>(), 2 - rank);
  });
}

TEST_F(GroupsWithGloo, NumbersAndSizesFromTheWireAreCheckedBeforeTheEngineSeesThem) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Rank rank;
  ASSERT_EQ(rank.open(*store, Rank::opening(0, 1)), "");
  const c10::InferenceMode inference_mode;
  const Groups::Scope scope(rank.groups());
  const Tensor one = at::full({2}, 1.0);
  EXPECT_THROW(all_reduce(one, -1), Refused);
  EXPECT_THROW(all_reduce(one, 8), Refused);
  EXPECT_THROW(all_reduce(at::full({1}, 1, at::kInt), 1), Refused);
  const auto broadcast = [&](int64_t group, int64_t root) {
    call<int64_t, TensorList, int64_t>("torch_remote::broadcast_", group, one, root);
  };
  EXPECT_THROW(broadcast(1, 1), Refused);
  EXPECT_THROW(broadcast(1, -1), Refused);
  EXPECT_THROW(broadcast(2, 0), Refused);
  const auto gather = [&](const Tensor& into) {
    call<int64_t, TensorList, const Tensor&>("torch_remote::all_gather", 1, into, one);
  };
  EXPECT_THROW(gather(at::empty({3})), Refused);
  EXPECT_THROW(gather(at::empty({2}, at::kInt)), Refused);
  const auto exchange = [&](at::IntArrayRef sizes) {
    call<int64_t, TensorList, TensorList, at::IntArrayRef, at::IntArrayRef>(
        "torch_remote::all_to_all", 1, at::empty({2}), one, {}, sizes);
  };
  EXPECT_THROW(exchange({3}), Refused);
  EXPECT_THROW(exchange({-1}), Refused);
  EXPECT_THROW(exchange({1, 1}), Refused);
  exchange({2});
}

TEST_F(GroupsWithGloo, MoreElementsThanCanBeCountedAreRefused) {
  with_two_ranks([](int) {
    const Tensor half = at::full({1}, 1.0).expand({int64_t{1} << 62});
    const Tensor one = at::full({1}, 1.0);
    EXPECT_THROW(
        (call<int64_t, TensorList, const Tensor&>("torch_remote::all_gather", 1, one, half)),
        Refused);
    EXPECT_THROW((call<int64_t, TensorList, TensorList, int64_t>("torch_remote::reduce_scatter", 1,
                                                                 half, one, 0)),
                 Refused);
    const std::vector<Tensor> both{half, half};
    const std::vector<Tensor> ones{one, one};
    EXPECT_THROW((call<int64_t, TensorList, TensorList, at::IntArrayRef, at::IntArrayRef>(
                     "torch_remote::all_to_all", 1, both, ones, {}, {})),
                 Refused);
  });
}

TEST(Groups, AServerWithoutPeersOpensNone) {
  Rank rank(false);
  EXPECT_NE(rank.ask(Rank::opening(0, 1)).error.message.find("--peers"), std::string::npos);
}

TEST(Groups, AnAddressThatIsNoNumberIsRefused) {
  for (const char* const address : {"", "localhost", "0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    wire::GroupQuery query = Rank::opening(0, 1);
    query.address = address;
    EXPECT_EQ(Rank().ask(query).error.kind, wire::ErrorKind::kRefused) << address;
  }
}

TEST_F(GroupsWithGloo, ARankThatDoesNotComeIsAnErrorAfterTheTimeout) {
  Rank rank;
  wire::GroupQuery query = Rank::opening(0, 2, 50);
  Rank::Reply reply = rank.ask(query);
  query.action = wire::GroupAction::kGoOn;  // and the client brings nothing
  while (reply.answer) {
    ASSERT_FALSE(reply.answer->is_open);
    reply = rank.ask(query);
  }
  EXPECT_NE(reply.error.message.find("did not answer in time"), std::string::npos);
  query.action = wire::GroupAction::kClose;
  EXPECT_TRUE(rank.ask(query).answer.has_value());
}

TEST(Groups, MoreThanASessionMayHaveAreRefused) {
  Rank rank;
  wire::GroupQuery query = Rank::opening(0, 1);
  query.address = "192.0.2.1";  // of no machine, so it cannot listen there
  for (query.group = 1; query.group <= wire::kMaxGroups; ++query.group)
    EXPECT_NE(rank.ask(query).error.message, "");
  EXPECT_THROW(rank.ask(query), ProtocolError);
}

}  // namespace
}  // namespace torch_remote::server
