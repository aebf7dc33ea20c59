#include "server/session/handover.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/platform.h"

namespace torch_remote::server {
namespace {

const std::string kToken(64, 't');

void send(const Fd& control, const std::string& message) {
  ASSERT_EQ(::send(control.get(), message.data(), message.size(), 0),
            static_cast<ssize_t>(message.size()));
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Handover, ASessionGetsItsClientAndWhatItIsTold) {
  const auto [listener, session] = message_pair();
  const auto [client, other_end] = socket_pair();
  Handover told;
  told.route = 7;
  told.has_token = 1;

  ASSERT_EQ(hand_over(listener, told, client, Fd()), Passed::kSent);
  ASSERT_EQ(hand_over(listener, told, client, client), Passed::kSent);
  const auto given = receive_client(session);
  const auto with_log = receive_client(session);

  ASSERT_TRUE(given && with_log);
  EXPECT_EQ(given->told.route, 7U);
  EXPECT_EQ(given->told.has_token, 1);
  EXPECT_EQ(::send(given->client.get(), "x", 1, 0), 1);
  EXPECT_FALSE(given->call_log);
  EXPECT_TRUE(with_log->call_log);
}

TEST(Handover, ASessionWhoseListenerIsGoneGetsNoClient) {
  auto [listener, session] = message_pair();
  listener.reset();
  EXPECT_FALSE(receive_client(session));
}

TEST(Handover, TheListenerMakesTheProofsOfASession) {
  const auto [listener, session] = message_pair();
  const std::string client = "client's hello";
  const std::string server = "server's hello";
  std::thread answering([&] {
    while (!answer_proof_request(listener, kToken))
      std::this_thread::yield();
  });

  const Proofs proofs = proofs_by_listener(session.get())(bytes(client), bytes(server), {});
  answering.join();

  const Proofs wanted = proofs_with(kToken)(bytes(client), bytes(server), {});
  EXPECT_EQ(proofs.server, wanted.server);
  EXPECT_EQ(proofs.client, wanted.client);
}

// Promise 4.
TEST(Handover, RubbishGetsNoProofAndEndsNothing) {
  for (const std::string& rubbish :
       {std::string("x"), std::string(12, '\xff'), std::string(11, '\0'),
        std::string(60'000, '\xff'), std::string("\1\0\0\0\1\0\0\0\1\0\0\0ab", 14)}) {
    const auto [listener, session] = message_pair();
    send(session, rubbish);

    EXPECT_TRUE(answer_proof_request(listener, kToken));

    char answer = 0;
    EXPECT_LT(::recv(session.get(), &answer, 1, MSG_DONTWAIT), 0);
    send(session, rubbish);
    EXPECT_NE(read_report(listener).kind, Report::Kind::kReady);
  }
}

TEST(Handover, NothingIsWaitedFor) {
  const auto [listener, session] = message_pair();
  EXPECT_FALSE(answer_proof_request(listener, kToken));
  EXPECT_EQ(read_report(listener).kind, Report::Kind::kNone);
}

TEST(Handover, WhyASessionCannotBeginIsReportedAndCut) {
  const auto [listener, session] = message_pair();
  tell_failure(session, std::string(5000, 'x'));

  const Report report = read_report(listener);

  EXPECT_EQ(report.kind, Report::Kind::kFailed);
  EXPECT_EQ(report.reason, std::string(Report::kMaxReason, 'x'));
}

TEST(Handover, AListenerThatDoesNotAnswerIsAConnectionError) {
  auto [listener, session] = message_pair();
  listener.reset();
  EXPECT_THROW(proofs_by_listener(session.get())({}, {}, {}), ConnectionError);
}

}  // namespace
}  // namespace torch_remote::server
