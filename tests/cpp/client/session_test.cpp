#include "client/session.h"

#include <future>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/storage.h"
#include "fake_server.h"
#include "transport/memory_stream.h"

namespace torch_remote::client::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kCallWindow = 65536;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

template <typename Use>
std::string error_of(Use use) {
  try {
    use();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(no error)";
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() : SessionTest(transport::memory_pair()) {}

  using Pair = std::pair<std::unique_ptr<transport::Stream>, std::unique_ptr<transport::Stream>>;

  explicit SessionTest(Pair pair)
      : server(std::move(pair.second)),
        session(*new Session("fake://server",
                             {[stream = std::make_shared<std::unique_ptr<transport::Stream>>(
                                   std::move(pair.first))] { return std::move(*stream); },
                              nullptr},
                             "")) {}

  void connect() {
    let_in(server.stream());
    server.start();
    session.welcome();
  }

  // A message that the fake server can tell from others.
  void submit(uint64_t number, uint32_t calls = 1) {
    session.submit(calls, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
      encode(writer, wire::Resize{number, 0, 0});
      return true;
    });
  }

  std::shared_ptr<Request> ask(std::span<std::byte> destination = {}) {
    const auto request = session.make_request(destination, nullptr);
    session.submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
      writer.u8(static_cast<uint8_t>(wire::Tag::kQuery));
      writer.varint(request->id);
      writer.u8(static_cast<uint8_t>(wire::QueryKind::kBarrier));
      return true;
    });
    return request;
  }

  // The text that ends a session which waits for an answer.
  std::string wait_for_the_end() {
    return error_of([&] { session.wait(ask(), "the end"); });
  }

  StorageRecord* make_storage(bool announced) {
    StorageRecord* record =
        RecordPool::instance().make(session.new_name(), &session, 0, /*nbytes=*/64);
    record->announced.store(announced);
    return record;
  }

  FakeServer server;
  Session& session;  // never destroyed: tensors may outlive everything
};

// --- submitting

TEST_F(SessionTest, MessagesOfEightThreadsArriveInTheOrderInWhichTheyWereSubmitted) {
  connect();
  constexpr uint8_t kThreads = 8;
  constexpr uint64_t kEach = 5000;
  uint64_t next = 0;  // under the submit lock
  std::vector<std::thread> threads;
  for (uint8_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 1; i <= kEach; ++i) {
        session.submit(1, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
          encode(writer, wire::Resize{++next, thread, i});
          return true;
        });
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();

  const auto messages = server.wait_for_messages(kThreads * kEach);

  ASSERT_EQ(messages.size(), kThreads * kEach);
  std::array<uint64_t, kThreads> last{};
  for (size_t i = 0; i < messages.size(); ++i) {
    ASSERT_EQ(messages[i].number, i + 1);
    ASSERT_EQ(messages[i].detail, ++last.at(messages[i].device));
  }
  EXPECT_EQ(session.counters().calls.load(), kThreads * kEach);
}

TEST_F(SessionTest, WhatIsSubmittedBeforeTheConnectionIsThereIsSentFirst) {
  submit(1);
  submit(2);
  connect();
  submit(3);
  const auto messages = server.wait_for_messages(3);
  EXPECT_EQ(messages[0].number, 1);
  EXPECT_EQ(messages[1].number, 2);
  EXPECT_EQ(messages[2].number, 3);
}

TEST_F(SessionTest, AFrameIsCutWhenItIsLargeEnough) {
  const size_t each = body_of(wire::Resize{1, 0, 0}).size();
  const size_t count = 2 * kFrameTarget / each + 1;
  for (size_t i = 0; i < count; ++i)
    submit(1);
  connect();
  const auto frames = server.wait_for_frames(3);
  EXPECT_EQ(frames[0].size(), kFrameTarget / each);
  EXPECT_EQ(server.wait_for_messages(count).size(), count);
}

TEST_F(SessionTest, NothingIsSentForAnAppendThatChangesItsMind) {
  session.submit(1, [](wire::Writer&, wire::NameState&, SignatureTable&) { return false; });
  EXPECT_EQ(session.counters().calls.load(), 0);
  submit(7);
  connect();
  EXPECT_EQ(server.wait_for_messages(1).size(), 1);
}

// --- frees

TEST_F(SessionTest, FreesRideBehindTheCallsOfTheirFrameOldestFirst) {
  StorageRecord* first = make_storage(true);
  StorageRecord* second = make_storage(true);
  const std::vector<uint64_t> names = {first->name, second->name};
  delete_record(first);
  delete_record(second);
  submit(7);

  connect();

  const auto frames = server.wait_for_frames(1);
  ASSERT_EQ(frames[0].size(), 2);
  EXPECT_EQ(frames[0][0].number, 7);
  EXPECT_EQ(frames[0][1].tag, wire::Tag::kFree);
  EXPECT_EQ(frames[0][1].names, names);
}

TEST_F(SessionTest, AStorageThatTheServerNeverHeardOfIsNotFreedThere) {
  StorageRecord* known = make_storage(true);
  const uint64_t name = known->name;
  delete_record(make_storage(false));
  delete_record(known);
  delete_record(make_storage(false));
  submit(7);

  connect();

  EXPECT_THAT(server.wait_for_messages(2)[1].names, ElementsAre(name));
}

TEST_F(SessionTest, AStorageIsFreedOnce) {
  connect();
  delete_record(make_storage(true));
  submit(7);
  server.wait_for_messages(2);
  const auto request = ask();
  server.wait_for_messages(3);
  server.reply(request->id);
  session.wait(request, "an answer");
  EXPECT_EQ(server.wait_for_messages(3).size(), 3);
}

// --- credit

TEST_F(SessionTest, WithoutCreditItWaitsUntilTheServerHasAppliedWhatItGot) {
  connect();
  submit(1, kCallWindow);
  server.wait_for_frames(1);  // on its way from the buffer to the wire, a frame counts as neither
  std::atomic<bool> is_applied = false;
  auto waiting = std::async(std::launch::async, [&] {
    session.wait_for_credit();
    return is_applied.load();
  });

  is_applied = true;
  server.apply_all();

  EXPECT_TRUE(waiting.get());
}

TEST_F(SessionTest, CreditIsTakenBeforeTheConnectionIsThere) {
  submit(1, kCallWindow);
  auto waiting = std::async(std::launch::async, [&] { session.wait_for_credit(); });
  connect();
  server.wait_for_frames(1);
  server.apply_all();
  EXPECT_EQ(waiting.wait_for(kPatience), std::future_status::ready);
}

TEST_F(SessionTest, BelowTheWindowNobodyWaits) {
  connect();
  submit(1, kCallWindow - 1);
  session.wait_for_credit();
}

TEST_F(SessionTest, WhoWaitsForCreditLearnsOfTheServersDeath) {
  connect();
  submit(1, kCallWindow);
  auto waiting =
      std::async(std::launch::async, [&] { return error_of([&] { session.wait_for_credit(); }); });
  server.wait_for_frames(1);
  server.die();
  EXPECT_THAT(waiting.get(), HasSubstr("is lost"));
}

// --- replies

TEST_F(SessionTest, AReplyCompletesTheRequestItNames) {
  connect();
  const auto first = ask();
  const auto second = ask();
  server.reply(second->id, bytes_of("two"));
  session.wait(second, "an answer");
  EXPECT_EQ(second->body, bytes_of("two"));
  server.reply(first->id, bytes_of("one"));
  session.wait(first, "an answer");
  EXPECT_EQ(first->body, bytes_of("one"));
  EXPECT_EQ(session.counters().syncs.load(), 2);
}

TEST_F(SessionTest, ManyThreadsGetTheirOwnReplies) {
  connect();
  constexpr size_t kThreads = 8;
  std::vector<std::future<bool>> answers;
  for (size_t i = 0; i < kThreads; ++i) {
    answers.push_back(std::async(std::launch::async, [&] {
      const auto request = ask();
      session.wait(request, "an answer");
      return request->body == bytes_of(std::to_string(request->id));
    }));
  }
  auto messages = server.wait_for_messages(kThreads);
  std::ranges::reverse(messages);
  for (const Message& message : messages)
    server.reply(message.number, bytes_of(std::to_string(message.number)));
  for (auto& answer : answers)
    EXPECT_TRUE(answer.get());
}

TEST_F(SessionTest, AnErrorIsRaisedWithItsOperatorAndServer) {
  connect();
  const auto request = ask();
  server.refuse(request->id, {wire::ErrorKind::kRuntime, 1, "aten::mm", "shapes do not fit"});
  const std::string text = error_of([&] { session.wait(request, "an answer"); });
  EXPECT_THAT(text, HasSubstr("aten::mm on "));
  EXPECT_THAT(text, HasSubstr("(fake-host, cpu, session 1a2b3c4d): shapes do not fit"));
  EXPECT_FALSE(session.is_lost());
}

TEST_F(SessionTest, AnErrorThatNobodyAskedForIsNoEnd) {
  connect();
  server.refuse(0, {wire::ErrorKind::kRuntime, 1, "aten::mm", "for the log"});
  const auto request = ask();
  server.reply(request->id);
  session.wait(request, "an answer");
  EXPECT_FALSE(session.is_lost());
}

TEST_F(SessionTest, AReplyThatNobodyAskedForEndsTheSession) {
  connect();
  server.reply(999);
  EXPECT_THAT(wait_for_the_end(), HasSubstr("a reply to a request that nobody made"));
}

TEST_F(SessionTest, ASecondReplyToOneRequestEndsTheSession) {
  connect();
  const auto request = ask();
  server.reply(request->id);
  session.wait(request, "an answer");
  server.reply(request->id);
  EXPECT_THAT(wait_for_the_end(), HasSubstr("nobody made"));
}

TEST_F(SessionTest, AMessageThatOnlyClientsSendEndsTheSession) {
  connect();
  server.send_payload(body_of(wire::Resize{1, 0, 0}));
  EXPECT_THAT(wait_for_the_end(), HasSubstr("that only clients send"));
}

TEST_F(SessionTest, AReplyThatIsCutShortEndsTheSession) {
  connect();
  const auto request = ask();
  wire::Writer writer;
  writer.u8(static_cast<uint8_t>(wire::Tag::kReply));
  writer.varint(request->id);
  writer.varint(100);  // bytes that do not come
  server.send_payload(writer.take());
  EXPECT_THAT(error_of([&] { session.wait(request, "an answer"); }), HasSubstr("is lost"));
}

// --- bulk

TEST_F(SessionTest, ABulkDownloadGoesStraightToItsDestination) {
  connect();
  std::vector<uint32_t> values(1 << 20);
  std::iota(values.begin(), values.end(), 0);
  std::vector<uint32_t> got(values.size());
  const auto request = ask(std::as_writable_bytes(std::span(got)));
  server.send_bulk(request->id, std::as_bytes(std::span(values)));
  session.wait(request, "a value");
  EXPECT_EQ(got, values);
}

TEST_F(SessionTest, ABulkDownloadThatEndsEarlyEndsTheSession) {
  connect();
  Bytes destination(1000);
  const auto request = ask(destination);
  server.send_bulk(request->id, Bytes(999));
  EXPECT_THAT(error_of([&] { session.wait(request, "a value"); }), HasSubstr("bulk bytes"));
}

TEST_F(SessionTest, ABulkDownloadBeyondItsDestinationEndsTheSession) {
  connect();
  Bytes destination(1000);
  const auto request = ask(destination);
  server.send_bulk(request->id, Bytes(1001));
  EXPECT_THAT(error_of([&] { session.wait(request, "a value"); }),
              HasSubstr("bulk bytes beyond what was asked for"));
}

TEST_F(SessionTest, AnEmptyReplyInPlaceOfABulkDownloadEndsTheSession) {
  connect();
  Bytes destination(1000);
  const auto request = ask(destination);
  server.reply(request->id);
  EXPECT_THAT(error_of([&] { session.wait(request, "a value"); }), HasSubstr("bulk bytes"));
}

TEST_F(SessionTest, AnErrorInPlaceOfABulkDownloadIsRaisedAndItsCauseHealed) {
  connect();
  Bytes destination(1000);
  const auto request = ask(destination);
  server.refuse(request->id, {wire::ErrorKind::kRuntime, 1, "aten::mm", "poisoned"});
  EXPECT_THAT(error_of([&] { session.wait(request, "a value"); }), HasSubstr("poisoned"));

  const Message last = server.wait_for_messages(2).back();
  EXPECT_EQ(last.tag, wire::Tag::kHeal);
  EXPECT_EQ(last.number, 1);
  EXPECT_FALSE(session.is_lost());
}

TEST_F(SessionTest, AReplyOverTheLimitEndsTheSession) {
  connect();
  const auto request = ask();
  server.reply(request->id, Bytes(wire::kMaxReplyBytes + 1));
  EXPECT_THAT(error_of([&] { session.wait(request, "a value"); }),
              HasSubstr("reply: 4194305 is over the limit of 4194304"));
}

TEST_F(SessionTest, BulkBytesThatNobodyAskedForEndTheSession) {
  connect();
  server.send_bulk(999, Bytes(10));
  EXPECT_THAT(wait_for_the_end(), HasSubstr("bulk bytes that nobody asked for"));
}

TEST_F(SessionTest, AnUploadsBeginIsAloneInItsFrameAndItsBytesFollow) {
  connect();
  auto bytes = std::make_shared<Bytes>(3 << 20, std::byte{42});
  std::promise<bool> arrived;
  wire::Begin begin;
  begin.upload = 5;
  begin.storage = 1;
  begin.length = bytes->size();
  submit(1);
  session.upload(begin, {}, *bytes, bytes, [&](bool all) { arrived.set_value(all); });
  submit(2);

  EXPECT_EQ(server.wait_for_bulk(5), *bytes);
  EXPECT_TRUE(arrived.get_future().get());
  server.wait_for_messages(3);
  for (const auto& frame : server.wait_for_frames(2)) {
    if (frame[0].tag == wire::Tag::kBegin)
      EXPECT_EQ(frame.size(), 1);
    for (size_t i = 1; i < frame.size(); ++i)
      EXPECT_NE(frame[i].tag, wire::Tag::kBegin);
  }
}

// --- the end

TEST_F(SessionTest, EveryUseAfterTheServersDeathRaisesTheFirstCause) {
  connect();
  server.die();
  const std::string first = wait_for_the_end();
  EXPECT_THAT(first, HasSubstr("on fake://server is lost"));
  EXPECT_EQ(error_of([&] { submit(1); }), first);
  EXPECT_EQ(error_of([&] { session.synchronize(); }), first);
  session.stop(std::chrono::milliseconds(1), "a later cause");
  EXPECT_EQ(error_of([&] { submit(1); }), first);
  EXPECT_EQ(session.state(), "lost");
}

TEST_F(SessionTest, TheServersReasonForClosingIsTold) {
  connect();
  server.close("idle for 10 m");
  EXPECT_THAT(wait_for_the_end(), HasSubstr("idle for 10 m"));
}

TEST_F(SessionTest, EveryWaitingThreadLearnsOfTheServersDeath) {
  connect();
  std::vector<std::future<std::string>> waiting;
  for (int i = 0; i < 4; ++i)
    waiting.push_back(std::async(std::launch::async, [&] { return wait_for_the_end(); }));
  server.wait_for_messages(4);
  server.die();
  for (auto& text : waiting)
    EXPECT_THAT(text.get(), HasSubstr("is lost"));
}

TEST_F(SessionTest, StoppingSendsWhatIsQueuedAndTellsTheServer) {
  connect();
  submit(1);
  session.stop(kPatience, "enough");
  server.wait_for_end();
  EXPECT_EQ(server.wait_for_messages(1)[0].number, 1);
}

TEST_F(SessionTest, AUseAfterStoppingRaisesWhyItWasStopped) {
  connect();
  session.stop(kPatience, "enough of it");
  EXPECT_THAT(error_of([&] { submit(1); }), HasSubstr("enough of it"));
}

TEST_F(SessionTest, StoppingDoesNotWaitLongerThanItsPatience) {
  let_in(server.stream());  // and then reads nothing, and never hangs up
  session.welcome();
  submit(1);
  const auto since = std::chrono::steady_clock::now();
  session.stop(std::chrono::milliseconds(50), "enough");
  EXPECT_LT(std::chrono::steady_clock::now() - since, kPatience / 2);
  EXPECT_TRUE(session.is_lost());
}

TEST_F(SessionTest, StoppedWhileItConnectsItHangsUpOnTheServer) {
  const Bytes hello = read_client_hello(server.stream());
  session.stop(std::chrono::milliseconds(1), "enough");
  send_block(server.stream(), body_of(server_hello("", hello)));
  read_block(server.stream());
  send_block(server.stream(), body_of(a_welcome()));
  server.start();
  server.wait_for_end();
  EXPECT_THAT(error_of([&] {
                session.welcome();
                submit(1);
              }),
              HasSubstr("enough"));
}

TEST_F(SessionTest, AHandshakeThatFailsIsRaisedByEveryUse) {
  read_client_hello(server.stream());
  wire::Welcome refusal;
  refusal.answer = wire::Answer::kRefused;
  refusal.reason = "too many sessions";
  send_block(server.stream(), body_of(refusal));
  const std::string text = "cannot use fake://server: too many sessions";
  EXPECT_EQ(error_of([&] { session.welcome(); }), text);
  EXPECT_EQ(error_of([&] { submit(1); }), text);
}

}  // namespace
}  // namespace torch_remote::client::testing
