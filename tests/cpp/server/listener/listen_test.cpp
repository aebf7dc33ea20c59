#include "server/listener/listen.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"
#include "server/listener/half_open.h"
#include "server/listener/limited_log.h"
#include "server/session/resume.h"
#include "transport/dial.h"
#include "transport/frame.h"
#include "wire/handshake.h"
#include "wire/messages.h"

namespace torch_remote::server {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::chrono::seconds kPatience{60};

// A server in a process of its own, on a Unix socket in a folder of its own.
class ListenTest : public testing::Test {
 protected:
  void start(ServeOptions options, LifetimeLimits limits = {}) {
    std::string folder = testing::TempDir() + "listen_XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    url_ = "unix://" + folder + "/s";
    log_ = folder + "/log";
    options.device = "cpu";
    auto [read_end, write_end] = pipe_pair();
    server_ = ::fork();
    if (server_ == 0) {
      ::dup2(write_end.get(), STDOUT_FILENO);
      const Fd log(::open(log_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
      ::dup2(log.get(), STDERR_FILENO);
      if (descriptors_ != 0) {
        const rlimit few{descriptors_, descriptors_};
        ::setrlimit(RLIMIT_NOFILE, &few);
      }
      try {
        options.limits = limits;
        SessionProgram program = session_program(options);
        program.path = TORCH_REMOTE_SERVER_PATH;
        listen(url_, "", options, prepared(program));
      } catch (const std::exception&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    write_end.reset();
    std::array<char, 256> line{};
    ASSERT_GT(::read(read_end.get(), line.data(), line.size() - 1), 0);
    ASSERT_THAT(line.data(), HasSubstr("listening on " + url_));
  }

  ~ListenTest() override {
    if (server_ <= 0)
      return;
    ::kill(server_, SIGTERM);
    ::waitpid(server_, nullptr, 0);
  }

  std::unique_ptr<transport::Stream> connect() const {
    return transport::dial(transport::parse_address(url_),
                           std::chrono::steady_clock::now() + kPatience);
  }

  void kill_listener() {
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
    server_ = -1;
  }

  // How many lines of the log have this text.
  size_t lines_with(const std::string& text) const {
    std::ifstream log(log_);
    size_t lines = 0;
    for (std::string line; std::getline(log, line);)
      lines += line.find(text) == std::string::npos ? 0 : 1;
    return lines;
  }

  void stop() const { ::kill(server_, SIGTERM); }

  // Processes start when the test calls let_start(), each as far as it has been called.
  void hold_processes() {
    gate_ = testing::TempDir() + "gate_" + std::to_string(::getpid());
    ::unlink(gate_.c_str());
    ASSERT_EQ(::mkfifo(gate_.c_str(), 0600), 0);
    held_ = Fd(::open(gate_.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(held_);
  }

  void let_start(size_t processes) {
    const std::string lines(processes, '\n');
    ASSERT_EQ(::write(held_.get(), lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
  }

  int wait_for_exit() {
    int status = 0;
    ::waitpid(server_, &status, 0);
    server_ = -1;
    return WEXITSTATUS(status);
  }

  rlim_t descriptors_ = 0;  // limit of the server; 0: ours

 private:
  // The same, behind the gate.
  SessionProgram prepared(SessionProgram program) const {
    if (gate_.empty())
      return program;
    std::vector<std::string> arguments{"sh", "-c", "read line < \"$0\" && exec \"$@\"", gate_,
                                       program.path};
    arguments.insert(arguments.end(), program.arguments.begin() + 1, program.arguments.end());
    return {"/bin/sh", std::move(arguments)};
  }

  std::string gate_;  // a pipe with a line for each process that may start
  Fd held_;
  std::string url_;
  std::string log_;
  pid_t server_ = -1;
};

constexpr int kLong = 30'000;

// Whether the process has ended, within so many milliseconds.
bool is_over(const Fd& process, int patience) {
  pollfd polled{process.get(), POLLIN, 0};
  return ::poll(&polled, 1, patience) == 1;
}

void send(transport::Stream& stream, std::span<const std::byte> bytes) {
  const std::array<std::span<const std::byte>, 1> parts = {bytes};
  stream.write(parts);
}

void send_block(transport::Stream& stream, const Bytes& body) {
  const auto length = static_cast<uint32_t>(body.size());
  send(stream, std::as_bytes(std::span(&length, 1)));
  send(stream, body);
}

Bytes read_exactly(transport::Stream& stream, size_t count) {
  Bytes bytes(count);
  for (size_t at = 0; at < count;) {
    const size_t got = stream.read_some(std::span(bytes).subspan(at));
    if (got == 0)
      throw ConnectionError("the server hung up");
    at += got;
  }
  return bytes;
}

Bytes read_block(transport::Stream& stream) {
  uint32_t length = 0;
  const Bytes bytes = read_exactly(stream, sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  return read_exactly(stream, length);
}

template <typename Message>
Bytes body_of(const Message& message) {
  wire::Writer writer;
  encode(writer, message);
  return writer.take();
}

wire::Welcome shake_hands(transport::Stream& stream, const std::string& token = "") {
  const Bytes ours = body_of(wire::Hello{});
  send(stream, wire::encode_preamble({}));
  send_block(stream, ours);
  wire::Hello theirs = wire::decode_hello(read_block(stream));
  theirs.has_proof = false;
  wire::ProofMessage proof;
  proof.has_proof = !token.empty();
  if (proof.has_proof)
    proof.proof = wire::make_proof(token, wire::Side::kClient, ours, body_of(theirs));
  send_block(stream, body_of(proof));
  return wire::decode_welcome(read_block(stream));
}

TEST_F(ListenTest, AClientIsWelcomedByAProcessOfItsOwn) {
  start({});
  const auto first = connect();
  const auto second = connect();

  const wire::Welcome one = shake_hands(*first);
  const wire::Welcome two = shake_hands(*second);

  EXPECT_TRUE(one.ok());
  ASSERT_EQ(one.devices.size(), 1);
  EXPECT_EQ(one.devices[0].kind, wire::DeviceKind::kCpu);
  EXPECT_EQ(one.session.size(), 8);
  EXPECT_NE(one.pid, two.pid);
}

// Reads what the listener says to a client that waits; returns how often.
size_t read_words(transport::Stream& stream, Bytes& answer) {
  const wire::WaitingBlock waiting = wire::waiting_block();
  for (size_t times = 0;; ++times) {
    answer = read_block(stream);
    if (!std::ranges::equal(answer, std::span(waiting).subspan(sizeof(wire::BlockHead))))
      return times;
  }
}

// Promise 2a.
TEST_F(ListenTest, ClientsForWhomNoProcessIsReadyAreToldThatTheyWaitAndServedInOrder) {
  hold_processes();
  start({});
  wire::Preamble preamble;
  preamble.route = wire::kAwaitsProcess;
  constexpr size_t kClients = 3 * kMostUnproven;
  std::vector<std::unique_ptr<transport::Stream>> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.push_back(connect());
    send(*clients.back(), wire::encode_preamble(preamble));
    send_block(*clients.back(), body_of(wire::Hello{}));
  }
  for (auto& client : clients)  // for longer than a client takes for the end of its server
    for (int i = 0; i < 4; ++i)
      ASSERT_EQ(read_exactly(*client, sizeof(wire::WaitingBlock)).size(),
                sizeof(wire::WaitingBlock));
  let_start(2 * kClients);
  // Only kMostUnproven have a process at a time: if any other order were kept, one would wait here
  // for ever.
  for (size_t i = 0; i < kClients; ++i) {
    Bytes answer;
    read_words(*clients[i], answer);
    EXPECT_NO_THROW(wire::decode_hello(answer)) << i;
    send_block(*clients[i], body_of(wire::ProofMessage{}));
    EXPECT_TRUE(wire::decode_welcome(read_block(*clients[i])).ok()) << i;
  }
}

// Promise 2.
TEST_F(ListenTest, RubbishAndSilenceDoNotKeepTheNextClientOut) {
  start({});
  const auto silent = connect();
  const auto rubbish = connect();
  send(*rubbish, Bytes(100, std::byte{'x'}));

  EXPECT_THROW(read_exactly(*rubbish, 1), ConnectionError);
  EXPECT_TRUE(shake_hands(*connect()).ok());
}

TEST_F(ListenTest, AWrongTokenIsRefusedAndTheRightOneServed) {
  ServeOptions options;
  options.token = "the right token";
  start(options);

  const wire::Welcome refused = shake_hands(*connect(), "the wrong token");
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(refused.reason, HasSubstr("token"));
  EXPECT_TRUE(shake_hands(*connect(), "the right token").ok());
}

// Promise 2.
TEST_F(ListenTest, MoreSilentConnectionsThanAllowedDropTheOldest) {
  start({});
  const auto oldest = connect();
  std::vector<std::unique_ptr<transport::Stream>> others;
  for (size_t i = 0; i < kMaxHalfOpen; ++i)
    others.push_back(connect());

  EXPECT_THROW(read_exactly(*oldest, 1), ConnectionError);
  EXPECT_TRUE(shake_hands(*others.back()).ok());
}

// Promise 2.
TEST_F(ListenTest, WithoutFreeDescriptorsSilentConnectionsGiveWay) {
  descriptors_ = 32;
  start({});
  std::vector<std::unique_ptr<transport::Stream>> silent;
  for (size_t i = 0; i < 2 * descriptors_; ++i)
    silent.push_back(connect());

  EXPECT_TRUE(shake_hands(*connect()).ok());
  EXPECT_GE(lines_with("too few descriptors are free"), 1);
  EXPECT_GE(lines_with("a connection that had not begun a session was ended"), 1);
  EXPECT_LE(lines_with("too few descriptors are free"), LimitedLog::kMostLines);
  EXPECT_EQ(lines_with("too many connections"), 0);
}

// Promise 8.
TEST_F(ListenTest, AMalformedFrameEndsItsSessionAndNoOther) {
  start({});
  const auto good = connect();
  const auto bad = connect();
  ASSERT_TRUE(shake_hands(*good).ok());
  ASSERT_TRUE(shake_hands(*bad).ok());
  send(*bad, Bytes(64, std::byte{0xee}));

  EXPECT_THROW(read_exactly(*bad, 1 << 16), ConnectionError);
  EXPECT_TRUE(shake_hands(*connect()).ok());
}

// A client that comes back to `session` with this secret, and has received nothing.
wire::Welcome come_back(transport::Stream& stream, const std::string& session,
                        const wire::Secret& secret) {
  wire::Preamble preamble;
  preamble.intent = 1;
  preamble.route = wire::session_route(session);
  const Bytes ours = body_of(wire::Hello{});
  send(stream, wire::encode_preamble(preamble));
  send_block(stream, ours);
  const Bytes answer = read_block(stream);
  if (answer.at(0) == std::byte{static_cast<uint8_t>(wire::Tag::kWelcome)})
    return wire::decode_welcome(answer);
  wire::Hello theirs = wire::decode_hello(answer);
  EXPECT_TRUE(theirs.has_proof);
  theirs.has_proof = false;
  const std::string key = wire::resume_key(secret, "");
  const wire::Proof proof = wire::make_proof(key, wire::Side::kClient, ours, body_of(theirs));
  send_block(stream, body_of(wire::ProofMessage{true, proof}));
  return wire::decode_welcome(read_block(stream));
}

bool answers_a_ping(transport::Stream& stream) {
  transport::FrameHeader ping;
  ping.kind = transport::FrameKind::kPing;
  send(stream, transport::encode_header(ping));
  while (true) {
    const Bytes bytes = read_exactly(stream, transport::kHeaderSize);
    const auto header = transport::decode_header(
        std::span<const std::byte, transport::kHeaderSize>(bytes), transport::FrameLimits());
    if (header.kind == transport::FrameKind::kPong)
      return true;
  }
}

// Promise 3b.
TEST_F(ListenTest, AClientThatProvesItsSecretComesBackToItsSession) {
  start({});
  auto first = connect();
  const wire::Welcome welcome = shake_hands(*first);
  EXPECT_GT(welcome.lease, 0);
  first.reset();

  const auto second = connect();
  const wire::Welcome again = come_back(*second, welcome.session, welcome.secret);
  EXPECT_EQ(again.answer, wire::Answer::kResumed);
  EXPECT_EQ(again.received, 0);
  EXPECT_TRUE(answers_a_ping(*second));
}

// Promise 3b.
TEST_F(ListenTest, WhoDoesNotKnowTheSecretIsRefusedAndTheClientStaysConnected) {
  start({});
  const auto client = connect();
  const wire::Welcome welcome = shake_hands(*client);
  wire::Secret guess = welcome.secret;
  guess[0] ^= std::byte{1};

  EXPECT_FALSE(come_back(*connect(), welcome.session, guess).ok());
  EXPECT_TRUE(answers_a_ping(*client));
}

TEST_F(ListenTest, OneMoreThanMayReturnAtOnceEndsTheOldest) {
  start({});
  const auto client = connect();
  const wire::Welcome welcome = shake_hands(*client);
  wire::Preamble preamble;
  preamble.intent = 1;
  preamble.route = wire::session_route(welcome.session);
  std::vector<std::unique_ptr<transport::Stream>> silent;
  for (size_t i = 0; i <= kMaxReturning; ++i) {
    silent.push_back(connect());
    send(*silent.back(), wire::encode_preamble(preamble));
  }

  std::array<std::byte, 1> nothing{};
  EXPECT_EQ(silent.front()->read_some(nothing), 0);
  EXPECT_TRUE(answers_a_ping(*client));
  EXPECT_EQ(come_back(*connect(), welcome.session, welcome.secret).answer, wire::Answer::kResumed);
}

// Promise 2.
TEST_F(ListenTest, StrangersWhoKnowTheIdDoNotTakeThePlaceOfTheClientThatReturns) {
  start({});
  const auto client = connect();
  const wire::Welcome welcome = shake_hands(*client);
  const std::string key = wire::resume_key(welcome.secret, "");
  wire::Preamble preamble;
  preamble.intent = 1;
  preamble.route = wire::session_route(welcome.session);
  const auto returning = connect();
  const Bytes ours = body_of(wire::Hello{});
  preamble.route_proof = wire::route_proof(key);
  send(*returning, wire::encode_preamble(preamble));
  send_block(*returning, ours);
  wire::Hello theirs = wire::decode_hello(read_block(*returning));
  theirs.has_proof = false;

  preamble.route_proof = 4711;
  std::vector<std::unique_ptr<transport::Stream>> silent;
  for (size_t i = 0; i < 2 * kMaxReturning; ++i) {
    silent.push_back(connect());
    send(*silent.back(), wire::encode_preamble(preamble));
  }
  std::array<std::byte, 1> nothing{};
  EXPECT_EQ(silent.front()->read_some(nothing), 0);  // others have come in its place

  const wire::Proof proof = wire::make_proof(key, wire::Side::kClient, ours, body_of(theirs));
  send_block(*returning, body_of(wire::ProofMessage{true, proof}));
  EXPECT_EQ(wire::decode_welcome(read_block(*returning)).answer, wire::Answer::kResumed);
}

TEST_F(ListenTest, ASessionThatIsNotKnownIsRefusedAtOnceWithItsName) {
  start({});
  const wire::Welcome refused = come_back(*connect(), "0123abcd", {});
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(refused.reason, "this server no longer knows session 0123abcd");
}

// Promise 11.
TEST_F(ListenTest, ASessionWithoutALeaseEndsWithItsConnection) {
  ServeOptions options;
  options.lease = std::chrono::milliseconds(0);
  start(options);
  auto client = connect();
  const wire::Welcome welcome = shake_hands(*client);
  EXPECT_EQ(welcome.lease, 0);
  client.reset();
  while (::kill(static_cast<pid_t>(welcome.pid), 0) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(come_back(*connect(), welcome.session, welcome.secret).ok());
}

TEST_F(ListenTest, ASessionWhoseListenerWasKilledServesItsClientAndEndsWithTheConnection) {
  start({});
  auto client = connect();
  const wire::Welcome welcome = shake_hands(*client);
  const Fd session = watch_parent(static_cast<pid_t>(welcome.pid));
  kill_listener();

  EXPECT_TRUE(answers_a_ping(*client));
  EXPECT_FALSE(is_over(session, 0));
  client.reset();
  EXPECT_TRUE(is_over(session, kLong));
}

TEST_F(ListenTest, ASessionThatWaitsForItsClientEndsWhenTheListenerIsKilled) {
  start({});
  auto client = connect();
  const wire::Welcome welcome = shake_hands(*client);
  const Fd session = watch_parent(static_cast<pid_t>(welcome.pid));
  client.reset();

  EXPECT_FALSE(is_over(session, 100));  // it has its lease
  kill_listener();
  EXPECT_TRUE(is_over(session, kLong));
}

// Promise 11.
TEST_F(ListenTest, ASessionWhoseListenerWasKilledKeepsToTheServersLimits) {
  LifetimeLimits limits;
  limits.idle = std::chrono::seconds(6);  // also of the listener, before the client is there
  start({}, limits);
  const auto client = connect();
  const wire::Welcome welcome = shake_hands(*client);
  const Fd session = watch_parent(static_cast<pid_t>(welcome.pid));
  kill_listener();
  EXPECT_TRUE(is_over(session, kLong));
}

TEST_F(ListenTest, AClientWaitsForTheRoomThatASessionLeavesWhichEnds) {
  ServeOptions options;
  options.max_sessions = 1;
  options.lease = std::chrono::milliseconds(0);
  start(options);
  auto first = connect();
  ASSERT_TRUE(shake_hands(*first).ok());

  const auto next = connect();
  send(*next, wire::encode_preamble({}));
  first.reset();
  const Bytes ours = body_of(wire::Hello{});
  send_block(*next, ours);
  EXPECT_NO_THROW(wire::decode_hello(read_block(*next)));  // and no refusal
}

// Promise 11.
TEST_F(ListenTest, ItEndsItselfWhenNobodyUsesIt) {
  LifetimeLimits limits;
  limits.idle = std::chrono::milliseconds(100);
  start({}, limits);
  EXPECT_EQ(wait_for_exit(), 0);
}

// Promise 11.
TEST_F(ListenTest, ItEndsItselfWhenItIsOldEvenInUse) {
  LifetimeLimits limits;
  limits.age = std::chrono::seconds(6);  // a busy machine loads libtorch meanwhile
  start({}, limits);
  const auto client = connect();
  shake_hands(*client);
  EXPECT_EQ(wait_for_exit(), 0);
  EXPECT_THROW(read_exactly(*client, 1 << 16), ConnectionError);
}

// Stopped, as one that was taken over may ignore SIGTERM.
// Promise 11.
TEST_F(ListenTest, ASessionThatDoesNotEndIsKilledASecondAfterItWasAskedTo) {
  for (const bool by_signal : {true, false}) {
    LifetimeLimits limits;
    if (!by_signal)
      limits.idle = std::chrono::seconds(4);
    start({}, limits);
    const auto client = connect();
    const auto pid = static_cast<pid_t>(shake_hands(*client).pid);
    const Fd session = watch_parent(pid);
    ::kill(pid, SIGSTOP);
    if (by_signal)
      stop();
    EXPECT_EQ(wait_for_exit(), 0);
    const bool has_ended = is_over(session, 0);
    EXPECT_TRUE(has_ended);
    if (!has_ended)
      ::kill(pid, SIGKILL);
  }
}

// Promise 1.
TEST(Listen, TcpWithoutATokenIsRefused) {
  try {
    listen("tcp://127.0.0.1:0", "", {}, {"", {}});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("--token-file"));
  }
}

}  // namespace
}  // namespace torch_remote::server
