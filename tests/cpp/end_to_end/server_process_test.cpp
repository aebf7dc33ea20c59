// The real torch-remote-server in a process of its own, driven with messages written by hand.
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"
#include "client/link/handshake.h"
#include "server/wire_client.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"

namespace torch_remote::end_to_end {
namespace {

using server::testing::add_signature;
using server::testing::FrameText;
using server::testing::kPatience;
using server::testing::SignatureText;
using server::testing::spec;
using server::testing::WireClient;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kServer = TORCH_REMOTE_SERVER_PATH;

// A child process, killed at the end of the test at the latest.
class ServerProcess {
 public:
  explicit ServerProcess(Child child) : child_(std::move(child)) {}

  ~ServerProcess() {
    if (child_.pid <= 0)
      return;
    kill();
    wait();
  }

  void kill() const { ::kill(child_.pid, SIGKILL); }

  // How it ended, as waitpid() says.
  int wait() {
    int status = 0;
    ::waitpid(child_.pid, &status, 0);
    child_.pid = -1;
    return status;
  }

 private:
  Child child_;
};

// Shakes hands first, which waits for the server.
class GreetedClient : public WireClient {
 public:
  explicit GreetedClient(std::unique_ptr<transport::Stream>&& stream)
      : GreetedClient(client::shake_hands(*stream, ""), std::move(stream)) {}

  const wire::Welcome welcome;

 private:
  GreetedClient(wire::Welcome greeting, std::unique_ptr<transport::Stream>&& stream)
      : WireClient(std::move(stream)), welcome(std::move(greeting)) {}
};

// x + y, read as request `request`. Names 1, 2 and 3 are used.
FrameText add_and_read(uint64_t request, const std::vector<float>& x, const std::vector<float>& y) {
  const auto size = static_cast<int64_t>(x.size());
  FrameText frame;
  frame.store(1, x).store(2, y).signature(add_signature(0, 0, {size}));
  frame.call(0).storage(1).storage(2).real(1).output(3).read(request, 3, spec({size}));
  return frame;
}

FrameText read_again(uint64_t request, int64_t size) {
  FrameText frame;
  frame.read(request, 3, spec({size}));
  return frame;
}

void send_raw(transport::Stream& stream, std::span<const std::byte> bytes) {
  const std::array<std::span<const std::byte>, 1> parts = {bytes};
  stream.write(parts);
}

// What the server says before it hangs up is dropped. ctest's time limit is the deadline.
void wait_for_hang_up(transport::Stream& stream) {
  std::array<std::byte, 4096> buffer;
  try {
    while (stream.read_some(buffer) > 0) {
    }
  } catch (const ConnectionError&) {
    // Reset: it did not read all that we sent.
  }
}

std::vector<Fd> only(Fd descriptor) {
  std::vector<Fd> list;
  list.push_back(std::move(descriptor));
  return list;
}

// --- over a socket pair, as the embedded server

class EmbeddedServerTest : public ::testing::Test {
 protected:
  EmbeddedServerTest() : EmbeddedServerTest(socket_pair()) {}

  explicit EmbeddedServerTest(std::pair<Fd, Fd> sockets)
      : process(spawn_server(kServer,
                             {"torch-remote-server", "serve", "--session-fd",
                              std::to_string(kInheritedDescriptor), "--device", "cpu"},
                             {{"OMP_NUM_THREADS", "1"}}, only(std::move(sockets.second)))),
        stream(transport::socket_stream(std::move(sockets.first), "the server")) {}

  ServerProcess process;
  std::unique_ptr<transport::Stream> stream;
};

TEST_F(EmbeddedServerTest, ACallIsSentAndItsResultReadBack) {
  GreetedClient client(std::move(stream));
  FrameText frame = add_and_read(5, {1, 2}, {10, 20});

  client.send(frame);

  EXPECT_THAT(client.wait(5).floats(), ElementsAre(11, 22));
  EXPECT_NE(client.welcome.pid, static_cast<uint64_t>(::getpid()));
  client.close();
  const int status = process.wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Asks for the results of an operator that is called with small tensors.
FrameText ask_for_results(uint64_t request, const char* name,
                          const std::vector<const char*>& arguments) {
  SignatureText signature(1, 1, name, "");
  FrameText frame;
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    signature.tensor(arguments[i], spec({1, 1}), i);
    frame.store(10 + i, {1});
  }
  frame.signature(signature).query_call(request, 1, 100, 4);
  for (uint64_t i = 0; i < arguments.size(); ++i)
    frame.storage(10 + i);
  return frame;
}

void expect_refused_as_pack(GreetedClient& client, const char* name,
                            const std::vector<const char*>& arguments) {
  FrameText sum = add_and_read(5, {1}, {2});
  FrameText pack = ask_for_results(6, name, arguments);
  FrameText after = read_again(7, 1);

  client.send(sum);
  client.send(pack);
  client.send(after);

  EXPECT_TRUE(client.wait(6).failed);
  EXPECT_THAT(client.wait(6).error.message,
              AllOf(HasSubstr(name), HasSubstr("may not be called by a client: its tensors hold "
                                               "packed objects or pointers in their bytes")));
  EXPECT_THAT(client.wait(7).floats(), ElementsAre(3));
}

// Promise 4.
TEST_F(EmbeddedServerTest, PackedWeightsAreRefusedAndTheSessionGoesOn) {
  GreetedClient client(std::move(stream));
  expect_refused_as_pack(client, "aten::_wrapped_linear_prepack",
                         {"weight", "weight_scale", "weight_zero_point", "bias"});
}

// Promise 4.
TEST_F(EmbeddedServerTest, ALayerOfPackedWeightsIsRefused) {
  GreetedClient client(std::move(stream));
  expect_refused_as_pack(client, "aten::_wrapped_quantized_linear_prepacked",
                         {"input", "input_scale", "input_zero_point", "packed_weight",
                          "output_scale", "output_zero_point"});
}

// Promise 8.
TEST_F(EmbeddedServerTest, GarbageAfterAGoodHandshakeEndsItWithoutACrash) {
  client::shake_hands(*stream, "");
  send_raw(*stream, std::vector<std::byte>(500, std::byte{0xee}));
  wait_for_hang_up(*stream);
  EXPECT_TRUE(WIFEXITED(process.wait()));
}

TEST_F(EmbeddedServerTest, AMalformedMessageEndsItWithAReason) {
  GreetedClient client(std::move(stream));
  client.send(std::vector<std::byte>{std::byte{22}, std::byte{1}, std::byte{0}});
  EXPECT_THAT(client.wait_for_end(), HasSubstr("thread 0 is never valid"));
  EXPECT_TRUE(WIFEXITED(process.wait()));
}

TEST_F(EmbeddedServerTest, AKilledServerIsNoticed) {
  GreetedClient client(std::move(stream));
  FrameText frame = add_and_read(5, {1}, {2});
  client.send(frame);
  client.wait(5);

  process.kill();

  // The latter where it had not read all that the client had sent.
  EXPECT_THAT(client.wait_for_end(), AnyOf(HasSubstr("closed"), HasSubstr("Connection reset")));
}

TEST_F(EmbeddedServerTest, ItEndsWhenItsClientHangsUp) {
  {
    GreetedClient client(std::move(stream));
    FrameText frame = add_and_read(5, {1}, {2});
    client.send(frame);
    client.wait(5);
  }
  EXPECT_TRUE(WIFEXITED(process.wait()));
}

// --- one listener, many sessions

class ListeningServerTest : public ::testing::Test {
 protected:
  ListeningServerTest() : ListeningServerTest(pipe_pair()) {}

  // Its standard output comes through the descriptor that it inherits.
  explicit ListeningServerTest(std::pair<Fd, Fd> pipe)
      : folder_(make_folder()),
        url_("unix://" + folder_ + "/s"),
        process(spawn_server("/bin/sh",
                             {"sh", "-c", "exec \"$0\" \"$@\" >&3", kServer, "serve", "--listen",
                              url_, "--device", "cpu"},
                             {{"OMP_NUM_THREADS", "1"}}, only(std::move(pipe.second)))) {
    std::array<char, 256> line{};
    // The line says that it is ready, or the end that it is not.
    line_ = ::read(pipe.first.get(), line.data(), line.size() - 1) > 0 ? line.data() : "";
  }

  ~ListeningServerTest() override { std::filesystem::remove_all(folder_); }

  void SetUp() override { ASSERT_THAT(line_, HasSubstr("listening on " + url_)); }

  std::unique_ptr<transport::Stream> dial() const {
    return transport::dial(transport::parse_address(url_),
                           std::chrono::steady_clock::now() + kPatience);
  }

 private:
  static std::string make_folder() {
    std::string folder = ::testing::TempDir() + "end_to_end_XXXXXX";
    return ::mkdtemp(folder.data()) == nullptr ? "" : folder;
  }

  const std::string folder_;
  const std::string url_;
  std::string line_;

 protected:
  ServerProcess process;
};

// Promise 4.
TEST_F(ListeningServerTest, SessionsDoNotSeeEachOthersStorages) {
  GreetedClient one(dial());
  GreetedClient two(dial());
  FrameText ones = add_and_read(5, {1, 2}, {10, 20});
  FrameText twos = add_and_read(5, {3}, {30});
  one.send(ones);
  two.send(twos);
  EXPECT_THAT(one.wait(5).floats(), ElementsAre(11, 22));
  EXPECT_THAT(two.wait(5).floats(), ElementsAre(33));
  EXPECT_NE(one.welcome.pid, two.welcome.pid);
}

// Promise 8.
TEST_F(ListeningServerTest, RubbishOnOneConnectionDoesNotDisturbAnother) {
  GreetedClient good(dial());
  FrameText frame = add_and_read(5, {1, 2}, {10, 20});
  good.send(frame);
  good.wait(5);
  const auto before_hello = dial();
  const auto after_hello = dial();
  client::shake_hands(*after_hello, "");

  send_raw(*before_hello, std::vector<std::byte>(500, std::byte{'x'}));
  send_raw(*after_hello, std::vector<std::byte>(500, std::byte{0xee}));

  wait_for_hang_up(*before_hello);
  wait_for_hang_up(*after_hello);
  FrameText again = read_again(6, 2);
  good.send(again);
  EXPECT_THAT(good.wait(6).floats(), ElementsAre(11, 22));
}

TEST_F(ListeningServerTest, AConnectionCutInTheMiddleOfAFrameDoesNotKeepTheNextClientOut) {
  auto cut = dial();
  client::shake_hands(*cut, "");
  send_raw(*cut, std::vector<std::byte>(10, std::byte{1}));
  cut.reset();

  GreetedClient next(dial());
  FrameText frame = add_and_read(5, {1}, {2});
  next.send(frame);
  EXPECT_THAT(next.wait(5).floats(), ElementsAre(3));
}

TEST_F(ListeningServerTest, AKilledSessionIsNoticedByItsClientAndNoOther) {
  GreetedClient victim(dial());
  GreetedClient other(dial());
  ASSERT_EQ(::kill(static_cast<pid_t>(victim.welcome.pid), SIGKILL), 0);
  EXPECT_THAT(victim.wait_for_end(), Not(HasSubstr("still open")));
  FrameText frame = add_and_read(5, {1}, {2});
  other.send(frame);
  EXPECT_THAT(other.wait(5).floats(), ElementsAre(3));
}

}  // namespace
}  // namespace torch_remote::end_to_end
