// Limits that the session enforces: one more than allowed is refused by name.
#include "wire/limits.h"

#include <functional>
#include <future>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/executor/generators.h"
#include "server/executor/reply.h"
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
  client.send(read.read(2, 1, spec({2})));  // waits for bytes that never come
  constexpr size_t kFrame = 15 << 20;
  for (size_t sent = 0; sent <= kMaxQueuedBytes; sent += kFrame)
    client.send(std::vector<std::byte>(kFrame));
  client.wait_for_end();
  executor.wait();
  EXPECT_THAT(page.end(), HasSubstr("bytes of frames that wait for the executor"));
}

}  // namespace
}  // namespace torch_remote::server::testing
