#pragma once

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <unistd.h>

#include "base/platform.h"
#include "tls_pair.h"
#include "transport/delay_line.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"
#include "transport/memory_stream.h"

namespace torch_remote::transport {

inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

inline StreamPair listen_and_dial(Address address) {
  const Fd listener = listen_on(address);
  auto dialed = dial(address, soon());
  return {std::move(dialed), socket_stream(accept_connection(listener), "accepted")};
}

inline StreamPair unix_pair() {
  std::string folder = "/tmp/torch_remote_test.XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    throw std::runtime_error("mkdtemp");
  const std::string path = folder + "/s";
  StreamPair pair = listen_and_dial(parse_address("unix://" + path));
  ::unlink(path.c_str());
  ::rmdir(folder.c_str());
  return pair;
}

inline StreamPair tcp_pair() {
  return listen_and_dial(parse_address("tcp://127.0.0.1:0"));
}

inline StreamPair pipe_stream_pair() {
  auto [there_read, there_write] = pipe_pair();
  auto [back_read, back_write] = pipe_pair();
  return {pipe_stream(std::move(back_read), std::move(there_write), "stdio"),
          pipe_stream(std::move(there_read), std::move(back_write), "stdio")};
}

inline StreamPair socket_stream_pair() {
  auto [a, b] = socket_pair();
  return {socket_stream(std::move(a), "socketpair"), socket_stream(std::move(b), "socketpair")};
}

struct StreamKind {
  const char* name;
  StreamPair (*make)();
};

template <StreamPair (*Make)()>
StreamPair with_delay() {
  StreamPair pair = Make();
  pair.first = delayed(std::move(pair.first), parse_delay("2"));
  return pair;
}

inline StreamPair default_memory_pair() {
  return memory_pair();
}

template <StreamPair (*Make)()>
StreamPair with_tls() {
  return secured(Make());
}

// Every way to move bytes, plain, encrypted and behind 2 ms of network.
inline const StreamKind kStreamKinds[] = {
    {"Memory", default_memory_pair},
    {"Unix", unix_pair},
    {"Tcp", tcp_pair},
    {"SocketPair", socket_stream_pair},
    {"Stdio", pipe_stream_pair},
    {"TlsOverTcp", with_tls<tcp_pair>},
    {"TlsOverStdio", with_tls<pipe_stream_pair>},
    {"DelayedMemory", with_delay<default_memory_pair>},
    {"DelayedUnix", with_delay<unix_pair>},
    {"DelayedTcp", with_delay<tcp_pair>},
    {"DelayedSocketPair", with_delay<socket_stream_pair>},
    {"DelayedStdio", with_delay<pipe_stream_pair>},
    {"TlsOverDelayedTcp", with_tls<with_delay<tcp_pair>>},
};

}  // namespace torch_remote::transport
