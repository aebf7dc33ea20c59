#include "transport/dial.h"

#include <cstdio>
#include <stdexcept>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/platform.h"
#include "stream_pairs.h"

namespace torch_remote::transport {
namespace {

class UnixSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    address_ = parse_address("unix://" + folder_ + "/s");
  }

  void TearDown() override {
    ::unlink(address_.path.c_str());
    ::rmdir(folder_.c_str());
  }

  std::string folder_ = "/tmp/torch_remote_test.XXXXXX";
  Address address_;
};

template <typename Error, typename Act>
std::string message_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(Address, EverySchemeIsParsedAndWrittenBack) {
  for (const char* url :
       {"unix:///run/torch.sock", "tcp://127.0.0.1:4711", "tcp://[::1]:80",
        "tcp://gpu-box.example:0", "tls://gpu-box.example:4711", "tls://[::1]:80?pin=abc",
        "tls://host:1?pin=abc&cert=/a%20b/c.pem&key=/k&ca=/x%26y"})
    EXPECT_EQ(to_string(parse_address(url)), url);
  EXPECT_EQ(parse_address("tls://host:1?cert=/a%20b&pin=p").cert, "/a b");
  EXPECT_EQ(short_name(parse_address("tls://host:1?pin=abc")), "tls://host:1");
  EXPECT_EQ(parse_address("tcp://[::1]:80").host, "::1");
  EXPECT_EQ(parse_address("tcp://localhost:65535").port, 65535);
}

TEST(Address, AMalformedOneIsRefusedWithASentence) {
  for (const char* url : {"",
                          "127.0.0.1:80",
                          "http://host:1",
                          "tcp://",
                          "tcp://host",
                          "tcp://host:",
                          "tcp://host:65536",
                          "tcp://host:-1",
                          "tcp://host:8x",
                          "tcp://:80",
                          "tcp://[::1]",
                          "tcp://::1:80",
                          "unix://",
                          "unix://relative",
                          "tls://host",
                          "tls://host:",
                          "tls://host:1?pin",
                          "tls://host:1?pin=",
                          "tls://host:1?other=1",
                          "tls://host:1?cert=%2",
                          "tls://host:1?cert=%zz",
                          "tls://host:1?cert=%00",
                          "tcp://host:1?pin=x"})
    EXPECT_THROW(parse_address(url), std::invalid_argument) << url;
  EXPECT_EQ(message_of<std::invalid_argument>([] { parse_address("tcp://host"); }),
            "'tcp://host' is not an address: the port is missing. Write unix:///path/to.sock, "
            "tcp://host:port or tls://host:port?pin=PIN.");
}

TEST(Listen, TcpOutsideLoopbackIsRefused) {
  for (const char* url : {"tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.168.0.1:0",
                          "tcp://example.com:0", "tcp://[::ffff:10.0.0.1]:0"}) {
    Address address = parse_address(url);
    const std::string message = message_of<std::invalid_argument>([&] { listen_on(address); });
    EXPECT_NE(message.find("TLS"), std::string::npos) << url << ": " << message;
  }
}

TEST(Listen, PortZeroIsReplacedByTheOneChosen) {
  for (const char* url : {"tcp://127.0.0.1:0", "tcp://localhost:0", "tcp://127.8.8.8:0"}) {
    Address address = parse_address(url);
    const Fd listener = listen_on(address);
    EXPECT_NE(address.port, 0) << url;
    EXPECT_NO_THROW(dial(address, soon())) << url;
  }
}

TEST(Listen, ThePeerOfATcpConnectionIsAnAddressAndNotOurs) {
  Address address = parse_address("tcp://127.0.0.1:0");
  const Fd listener = listen_on(address);
  const auto client = dial(address, soon());
  const std::string peer = describe_peer(accept_connection(listener));
  EXPECT_TRUE(peer.starts_with("127.0.0.1:")) << peer;
  EXPECT_NE("tcp://" + peer, to_string(address));
}

TEST(Dial, APortThatNobodyListensOnIsAConnectionError) {
  Address address = parse_address("tcp://127.0.0.1:0");
  listen_on(address).reset();
  const std::string message = message_of<ConnectionError>([&] { dial(address, soon()); });
  EXPECT_EQ(message, "connecting to " + to_string(address) + ": Connection refused");
}

TEST_F(UnixSocketTest, TheSocketIsForItsOwnerOnly) {
  const Fd listener = listen_on(address_);

  struct stat found {};

  ASSERT_EQ(::stat(address_.path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700U);
}

TEST_F(UnixSocketTest, ASocketThatWasLeftBehindIsReplaced) {
  listen_on(address_).reset();
  const Fd listener = listen_on(address_);
  EXPECT_NO_THROW(dial(address_, soon()));
}

TEST_F(UnixSocketTest, ASocketInUseIsNotReplaced) {
  const Fd listener = listen_on(address_);
  EXPECT_NE(message_of<ConnectionError>([&] { listen_on(address_); }).find("another server"),
            std::string::npos);
  EXPECT_NO_THROW(dial(address_, soon()));
}

TEST_F(UnixSocketTest, AFileThatIsNoSocketIsNotReplaced) {
  std::fclose(std::fopen(address_.path.c_str(), "w"));
  EXPECT_NE(message_of<ConnectionError>([&] { listen_on(address_); }).find("not a socket"),
            std::string::npos);
}

TEST_F(UnixSocketTest, APathThatIsTooLongIsRefused) {
  Address address = parse_address("unix:///" + std::string(200, 'x'));
  EXPECT_THROW(listen_on(address), std::invalid_argument);
}

}  // namespace
}  // namespace torch_remote::transport
