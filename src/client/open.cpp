#include "client/open.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/platform.h"
#include "transport/delay_line.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"

namespace torch_remote::client {
namespace {

constexpr auto kDialPatience = std::chrono::seconds(10);

std::unique_ptr<transport::Stream> start_embedded(const std::string& path, int threads) {
  auto [ours, theirs] = socket_pair();
  const std::vector<std::string> arguments = {"torch-remote-server", "serve", "--session-fd",
                                              std::to_string(kInheritedDescriptor), "--parent-pid",
                                              std::to_string(getpid())};
  // OpenMP reads its number of threads once, before the context can tell it ours.
  spawn_server(path, arguments, {{"OMP_NUM_THREADS", std::to_string(threads)}}, std::move(theirs));
  return transport::socket_stream(std::move(ours), "the embedded server");
}

std::unique_ptr<transport::Stream> with_delay(std::unique_ptr<transport::Stream> stream) {
  const char* net = std::getenv("TORCH_REMOTE_NET");
  if (net == nullptr || *net == '\0') return stream;
  return transport::delayed(std::move(stream), transport::parse_delay(net));
}

}  // namespace

Session::Open opener_for(const std::string& url, const std::string& server_path) {
  if (url == "local") {
    const int threads = at::get_num_threads();
    return [server_path, threads] { return with_delay(start_embedded(server_path, threads)); };
  }
  const transport::Address address = transport::parse_address(url);
  return [address] { return with_delay(transport::dial(address, std::chrono::steady_clock::now() + kDialPatience)); };
}

std::string token_from_environment() {
  if (const char* path = std::getenv("TORCH_REMOTE_TOKEN_FILE")) {
    std::ifstream file(path);
    std::string token;
    if (!(file >> token)) throw ConnectionError(std::string("cannot read a token from ") + path);
    return token;
  }
  const char* token = std::getenv("TORCH_REMOTE_TOKEN");
  return token == nullptr ? "" : token;
}

}  // namespace torch_remote::client
