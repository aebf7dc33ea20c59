#include <future>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "session_fixture.h"
#include "wire/limits.h"

namespace torch_remote::client::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  EXPECT_EQ(session.order().counters().syncs.load(), 2);
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
  EXPECT_FALSE(session.link().is_lost());
}

// Promise 7b.
TEST_F(SessionTest, AnErrorWhoseTextIsNotUtf8IsRaisedAllTheSame) {
  connect();
  const auto request = ask();
  server.refuse(request->id, {wire::ErrorKind::kRuntime, 1, "aten::\xff", "bad \xfe shape"});
  const std::string text = error_of([&] { session.wait(request, "an answer"); });
  EXPECT_THAT(text, HasSubstr("bad \xef\xbf\xbd shape"));
  EXPECT_THAT(text, HasSubstr("aten::\xef\xbf\xbd on "));
  EXPECT_FALSE(session.link().is_lost());
}

TEST_F(SessionTest, AnErrorThatNobodyAskedForIsNoEnd) {
  connect();
  server.refuse(0, {wire::ErrorKind::kRuntime, 0, "aten::mm", "for the log"});
  const auto request = ask();
  server.reply(request->id);
  session.wait(request, "an answer");
  EXPECT_FALSE(session.link().is_lost());
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
  {
    const wire::Message framed(writer, wire::Tag::kReply);
    writer.varint(request->id);
    writer.varint(100);  // bytes that do not come
  }
  server.send_payload(writer.take());
  EXPECT_THAT(error_of([&] { session.wait(request, "an answer"); }), HasSubstr("is lost"));
}

TEST_F(SessionTest, MoreFreshResultsThanNamesEndTheSession) {
  connect();
  const auto request = ask();
  request->names = 2;
  request->first_name = session.order().new_names().storages(request->names);
  wire::Result fresh;
  fresh.kind = wire::ResultKind::kFresh;
  wire::Result list;
  list.kind = wire::ResultKind::kList;
  list.items = {fresh, fresh};
  server.reply(request->id, body_of(std::vector<wire::Result>{fresh, list}));
  EXPECT_THAT(error_of([&] { session.wait(request, "an answer"); }), HasSubstr("more storages"));
}

TEST_F(SessionTest, ALostDeviceEndsTheConnectionToAServerThatStays) {
  connect();
  submit(1);
  wire::Error error{wire::ErrorKind::kAccelerator, 1, "aten::mm", "the device is gone"};
  error.first = 1;
  server.refuse(0, error);
  EXPECT_THAT(wait_for_the_end(), HasSubstr("the device is gone"));
  server.wait_for_end();
}

// The reader thread cannot check the answer: only who asked knows what it must be.
// Promise 7b.
TEST_F(SessionTest, AnAnswerThatOnlyItsCallerCanCheckEndsTheSessionToo) {
  connect();
  std::thread answer([&] {
    server.reply(server.wait_for_messages(1).back().number, bytes_of("\xff"));
    server.wait_for_end();
  });
  EXPECT_THAT(error_of([&] { server_counters(session); }), HasSubstr("is lost: protocol: "));
  EXPECT_TRUE(session.link().is_lost());
  answer.join();
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
  EXPECT_THAT(error_of([&] { session.wait(request, "a value"); }),
              HasSubstr("a reply of 0 bytes where 1000 were asked for"));
}

wire::Error failure_of(uint64_t thread) {
  wire::Error error{wire::ErrorKind::kRuntime, 1, "aten::mm", "no memory"};
  error.thread = thread;
  error.since = 1;
  return error;
}

TEST_F(SessionTest, AnErrorInPlaceOfABulkDownloadIsRaisedAndItsThreadGoesOn) {
  connect();
  submit(1);
  Bytes destination(1000);
  const auto request = ask(destination);
  server.refuse(0, failure_of(current_thread()));
  server.refuse(request->id, failure_of(current_thread()));
  EXPECT_THAT(error_of([&] { session.wait(request, "a value"); }), HasSubstr("no memory"));

  const Message last = server.wait_for_messages(3).back();
  EXPECT_EQ(last.tag, wire::Tag::kGoOn);
  EXPECT_EQ(last.number, current_thread());
  EXPECT_FALSE(session.link().is_lost());
}

TEST_F(SessionTest, AFailureIsToldToItsThreadBeforeTheNextCallAndOnce) {
  connect();
  submit(1);
  server.refuse(0, failure_of(current_thread()));
  const auto request = ask();
  server.reply(request->id);  // behind the report
  session.wait(request, "an answer");

  EXPECT_THAT(error_of([&] { session.begin_call(); }), HasSubstr("no memory"));
  session.begin_call();
  EXPECT_EQ(server.wait_for_messages(3).back().tag, wire::Tag::kGoOn);
}

TEST_F(SessionTest, AFailureOfAnotherThreadIsToldBySynchronizeOnlyAndOnce) {
  connect();
  submit(1);
  std::promise<uint64_t> number;
  std::promise<void> end;
  std::thread other([&] {
    number.set_value(current_thread());
    end.get_future().wait();  // lives until the end: of one that has ended the server is told
  });
  server.refuse(0, failure_of(number.get_future().get()));
  const auto synchronize = [&](size_t messages) {
    return error_of([&] {
      std::thread answer([&] { server.reply(server.wait_for_messages(messages).back().number); });
      try {
        session.synchronize();
      } catch (...) {
        answer.join();
        throw;
      }
      answer.join();
    });
  };
  session.begin_call();
  EXPECT_THAT(synchronize(2), HasSubstr("no memory"));
  EXPECT_EQ(synchronize(3), "(no error)");
  end.set_value();
  other.join();
}

TEST_F(SessionTest, AMessageOfAnUnknownKindIsSkipped) {
  connect();
  wire::Writer writer;
  {
    const wire::Message framed(writer, static_cast<wire::Tag>(200));
    writer.varint(77);
  }
  server.send_payload(writer.take());
  const auto request = ask();
  server.reply(request->id);
  session.wait(request, "an answer");
  EXPECT_FALSE(session.link().is_lost());
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
  session.upload(begin, {}, {*bytes, bytes}, [&](bool all) { arrived.set_value(all); });
  submit(2);

  EXPECT_EQ(server.wait_for_bulk(5), *bytes);
  EXPECT_TRUE(arrived.get_future().get());
  server.wait_for_messages(3);
  for (const auto& frame : server.wait_for_frames(2)) {
    if (frame[0].tag == wire::Tag::kBegin) {
      EXPECT_EQ(frame.size(), 1);
    }
    for (size_t i = 1; i < frame.size(); ++i)
      EXPECT_NE(frame[i].tag, wire::Tag::kBegin);
  }
}

}  // namespace
}  // namespace torch_remote::client::testing
