// Limits that the session enforces: one more than allowed is refused by name.
#include "wire/limits.h"

#include <fstream>
#include <functional>
#include <future>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "server/bytes/reply.h"
#include "server/executor/generators.h"
#include "server/executor/storage_table.h"
#include "server/session/session.h"
#include "support.h"
#include "transport/memory_stream.h"
#include "wire_client.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const std::function<void()>& use) {
  try {
    use();
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "(accepted)";
}

// The size of this process's address space.
uint64_t virtual_bytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Promise 7.
TEST(ServerLimits, StoragesOfASession) {
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams, {.storages = 2});
  storages.make(1, 4, c10::kCPU, 0, {});
  storages.make(2, 4, c10::kCPU, 0, {});
  EXPECT_EQ(refusal([&] { storages.make(3, 4, c10::kCPU, 0, {}); }),
            "protocol: storages of a session: 3 is over the limit of 2");

  storages.free(1);
  storages.make(3, 4, c10::kCPU, 0, {});
}

// Multiples of this number fall into one place of PyTorch's hash table, if names are not hashed:
// it is the inverse of the multiplier of its hash policy. The table grows at each of them.
constexpr uint64_t kColliding = 0xf1de83e19937733d;
static_assert(kColliding * 11400714819323198485ULL == 1);

// Promise 7a.
TEST(ServerLimits, NamesThatAClientChoosesDoNotMakeTheTableGrow) {
  Uploads uploads;
  const Devices devices(c10::kCPU, 1);
  Streams streams(devices);
  StorageTable storages(uploads, streams);
  const uint64_t before = virtual_bytes();
  for (uint64_t i = 1; i <= 25; ++i)
    storages.make(i * kColliding, 0, c10::kCPU, 0, {});
  EXPECT_LT(virtual_bytes(), before + (64 << 20));
}

// Promise 7.
TEST(ServerLimits, GeneratorsOfASession) {
  const Devices devices = Devices::choose("cpu", 1);
  Generators generators(devices);
  const auto make = [&](uint64_t i) {
    generators.apply({wire::kFirstGenerator + i, wire::GeneratorAction::kMake, 0, {}}, {});
  };
  for (uint64_t i = 0; i < wire::kMaxGenerators; ++i)
    make(i);
  EXPECT_EQ(refusal([&] { make(wire::kMaxGenerators); }),
            "protocol: generators of a session: 65537 is over the limit of 65536");
}

// Promise 7.
TEST(ServerLimits, BytesOfUploadsOnTheirWay) {
  Uploads uploads;
  wire::Begin begin;
  begin.upload = 1;
  begin.storage = 1;
  begin.length = kMaxStagedBytes + 1;
  wire::Writer writer;
  encode(writer, begin);
  EXPECT_THAT(refusal([&] { uploads.expect_from(writer.view()); }),
              StartsWith("protocol: bytes of uploads on their way: 68719476737 is over the limit"));
}

// Promise 7.
TEST(ServerLimits, BytesOfRepliesThatTheClientHasNotTaken) {
  Replies replies;
  const std::vector<std::byte> body(wire::kMaxInlineBytes);
  const uint64_t fit = kMaxQueuedReplyBytes / body.size();
  EXPECT_THAT(refusal([&] {
                for (uint64_t i = 1; i <= fit + 2; ++i)
                  replies.reply(i, body);
              }),
              HasSubstr("bytes of replies that the client has not taken"));
  EXPECT_TRUE(replies.is_half_full());
}

// A connection that is never started: what it is to send stays with it.
class Unsent : private transport::Connection::Handler {
 public:
  explicit Unsent(Replies& replies) : connection_(transport::memory_pair().first, *this, {}) {
    replies.attach(&connection_);
  }

 private:
  std::vector<std::byte> take_messages(uint32_t& /*calls*/) override { return {}; }

  void on_messages(uint64_t /*sequence*/, std::vector<std::byte> /*payload*/) override {}

  std::span<std::byte> bulk_target(uint64_t, uint64_t, uint64_t) override { return {}; }

  void on_bulk(uint64_t, uint64_t, uint64_t, bool) override {}

  void on_end(std::exception_ptr /*cause*/) noexcept override {}

  transport::Connection connection_;
};

// Promise 7.
TEST(ServerLimits, BulkReadsThatTheClientHasNotTaken) {
  Replies replies;
  const Unsent connection(replies);
  const std::vector<std::byte> bytes(wire::kMaxInlineBytes + 1);
  const uint64_t fit = kMaxQueuedReplyBytes / kBulkPartCost;
  EXPECT_EQ(refusal([&] {
              for (uint64_t i = 1; i <= fit; ++i)
                replies.part(i, bytes, nullptr, {});
            }),
            "(accepted)");
  EXPECT_THAT(refusal([&] {
                for (uint64_t i = fit + 1; i <= fit + 2; ++i)
                  replies.part(i, bytes, nullptr, {});
              }),
              HasSubstr("bytes of replies that the client has not taken"));
}

// While the connection is broken, calls wait as soon as half of the limit is used.
// Promise 7.
TEST(ServerLimits, BytesOfBulkReadsMakeCallsWaitForABrokenConnection) {
  Replies replies;
  const Unsent connection(replies);
  const std::vector<std::byte> bytes(1 << 20);
  EXPECT_FALSE(replies.is_half_full());
  for (uint64_t i = 0; i <= kMaxQueuedReplyBytes / 2 / bytes.size(); ++i)
    replies.part(i + 1, bytes, nullptr, {});
  EXPECT_TRUE(replies.is_half_full());
}

constexpr int64_t kFloats = 1 << 18;  // 1 MiB

// Promise 7.
TEST(ServerLimits, CopiesThatAreMadeForReadsCountTowardsMaxMemory) {
  Server server(1, 3 << 20);
  const Unsent connection(server.replies);
  server.apply(FrameText().resize(1, kFloats * 4));
  wire::TensorSpec transposed = spec({512, 512});
  transposed.strides = {1, 512};
  const auto read = [&](uint64_t request, const wire::TensorSpec& view) {
    return server.apply(FrameText().read(request, 1, view));
  };
  EXPECT_TRUE(read(1, transposed).empty());  // is sent as bulk bytes
  EXPECT_TRUE(read(2, transposed).empty());
  const std::vector<Reply> third = read(3, transposed);
  ASSERT_EQ(third.size(), 1);
  EXPECT_EQ(third[0].error.kind, wire::ErrorKind::kOutOfMemory);
  EXPECT_THAT(third[0].error.message, HasSubstr("serve --max-memory"));
  EXPECT_TRUE(read(4, spec({kFloats})).empty());  // is sent from the storage
}

// Promise 7.
TEST(ServerLimits, WhatAStorageLeavesToItsRepliesCountsTowardsMaxMemory) {
  Server server(1, 3 << 20);
  const Unsent connection(server.replies);
  for (uint64_t name = 1; name <= 3; ++name) {
    server.apply(FrameText().resize(name, kFloats * 4).read(name, name, spec({kFloats})));
    server.apply(FrameText().free({name}));
  }
  const std::vector<Reply> fourth =
      server.apply(FrameText().resize(4, kFloats * 4).read(4, 4, spec({kFloats})));
  ASSERT_EQ(fourth.size(), 1);
  EXPECT_EQ(fourth[0].error.kind, wire::ErrorKind::kOutOfMemory);
}

TEST(ServerLimits, AShortageOfMemoryHasItsBytesForAClientThatKnowsThem) {
  Server server(1, 3 << 20);
  server.apply(FrameText().resize(1, kFloats * 16));
  const auto read = [&](uint64_t request) {
    const std::vector<Reply> replies =
        server.apply(FrameText().read(request, 1, spec({kFloats * 4})));
    return replies.empty() ? wire::Error() : replies[0].error;
  };
  const wire::Error unknown = read(1);
  EXPECT_EQ(unknown.kind, wire::ErrorKind::kOutOfMemory);
  EXPECT_EQ(unknown.wanted, 0);
  EXPECT_EQ(unknown.free, 0);
  server.replies.send_shortages();
  const wire::Error known = read(2);
  EXPECT_EQ(known.wanted, 4 << 20);
  EXPECT_EQ(known.free, 3 << 20);
  EXPECT_EQ(known.message, unknown.message);
}

// Promise 7.
TEST(ServerLimits, UploadsThatHaveBegun) {
  Uploads uploads(false, {.lanes = 2});
  const auto begin = [&](uint64_t lane) {
    wire::Begin upload;
    upload.upload = lane;
    upload.storage = 1;
    wire::Writer writer;
    encode(writer, upload);
    uploads.expect_from(writer.view());
  };
  begin(1);
  begin(2);
  EXPECT_EQ(refusal([&] { begin(3); }), "protocol: uploads on their way: 3 is over the limit of 2");
}

// Promise 7.
TEST(ServerLimits, UploadsThatAreNotInAStorageYetAreLimitedByMaxMemory) {
  EXPECT_EQ(UploadLimits::for_max_memory(UINT64_MAX).bytes, UINT64_MAX);
  EXPECT_EQ(UploadLimits::for_max_memory(1).bytes, kLeastStagedBytes);
  Uploads uploads(false, {.bytes = 100});
  const auto take = [&](uint64_t lane) {
    wire::Begin upload;
    upload.upload = lane;
    upload.storage = 1;
    upload.length = 60;
    wire::Writer writer;
    encode(writer, upload);
    uploads.expect_from(writer.view());
    return uploads.take(lane, upload.length);
  };
  const auto first = take(1);
  EXPECT_THROW(take(2), c10::OutOfMemoryError);
}

// Session::on_end() does not throw, so what it calls starts no thread: it may wait.
// Promise 7c.
TEST(ServerLimits, WhatASessionDoesAtItsEndMayTakeTimeOnTheThreadThatCallsIt) {
  auto [there, here] = transport::memory_pair();
  const Devices devices = Devices::choose("cpu", 1);
  const OperatorTable table;
  std::promise<void> has_run;
  Session::Hooks hooks;
  hooks.on_end = [&] { has_run.get_future().wait(); };
  Session session(std::move(here), devices, table, hooks);
  auto executor = std::async(std::launch::async, [&] { session.run(); });
  WireClient client(std::move(there));
  client.close();
  EXPECT_EQ(executor.wait_for(kPatience), std::future_status::ready);
  has_run.set_value();
}

// The slots of a session can hold far more than a server has memory for.
// Promise 7.
TEST(ServerLimits, BytesOfSignatures) {
  Server server;
  const std::string text(wire::kMaxText, 'x');
  const auto send = [&](uint32_t index) {
    SignatureText signature(index, index, "aten::nothing", "");
    for (int i = 0; i < 120; ++i)
      signature.text("a", text);
    server.apply(FrameText().signature(signature));
  };
  send(0);
  const std::string refused = refusal([&] {
    for (uint32_t index = 1; index < 20; ++index)
      send(index);
  });
  EXPECT_THAT(refused, HasSubstr("bytes of signatures: "));
}

// The executor waits for the bytes of an upload, which never come.
void block_executor(WireClient& client) {
  wire::Begin begin;
  begin.upload = 7;
  begin.storage = 1;
  begin.length = 8;
  FrameText storage;
  FrameText upload;
  FrameText read;
  client.send(storage.resize(1, 8));
  encode(upload.writer, begin);
  client.send(upload);
  client.send(read.read(2, 1, spec({2})));
}

// Promise 7.
TEST(ServerLimits, FramesOfOneByteCountWithWhatTheyCost) {
  auto [there, here] = transport::memory_pair();
  const Devices devices = Devices::choose("cpu", 1);
  const OperatorTable table;
  SessionPage& page = SessionPage::make_private();
  Session::Hooks hooks;
  hooks.page = &page;
  hooks.max_queued_bytes = 100 * transport::kFrameCost;
  Session session(std::move(here), devices, table, hooks);
  const auto executor = std::async(std::launch::async, [&] { session.run(); });
  WireClient client(std::move(there));
  block_executor(client);
  for (size_t sent = 0; sent < 100; ++sent)
    client.send(std::vector<std::byte>(1));
  client.wait_for_end();
  executor.wait();
  EXPECT_THAT(page.end(), HasSubstr("bytes of frames that wait for the executor"));
}

// Promise 7.
TEST(ServerLimits, BytesOfFramesThatWaitForTheExecutor) {
  auto [there, here] = transport::memory_pair();
  const Devices devices = Devices::choose("cpu", 1);
  const OperatorTable table;
  SessionPage& page = SessionPage::make_private();
  Session::Hooks hooks;
  hooks.page = &page;
  Session session(std::move(here), devices, table, hooks);
  const auto executor = std::async(std::launch::async, [&] { session.run(); });
  WireClient client(std::move(there));
  block_executor(client);
  constexpr size_t kFrame = 15 << 20;
  for (size_t sent = 0; sent <= kMaxQueuedBytes; sent += kFrame)
    client.send(std::vector<std::byte>(kFrame));
  client.wait_for_end();
  executor.wait();
  EXPECT_THAT(page.end(), HasSubstr("bytes of frames that wait for the executor"));
}

}  // namespace
}  // namespace torch_remote::server::testing
