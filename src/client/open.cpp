#include "client/open.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "base/error.h"
#include "base/mutex.h"
#include "base/platform.h"
#include "transport/delay_line.h"
#include "transport/dial.h"
#include "transport/fd_stream.h"

namespace torch_remote::client {
namespace {

constexpr auto kDialPatience = std::chrono::seconds(10);

// The embedded server's process, once it is started.
struct Embedded {
  Mutex mutex;
  Child child GUARDED_BY(mutex);
};

// It ends by itself when its socket closes; one that does not (stopped, or deep in an operator) is killed.
void end_embedded(Embedded& embedded) {
  constexpr int kGraceMilliseconds = 500;
  MutexLock lock(embedded.mutex);
  const pid_t pid = embedded.child.pid;
  if (pid <= 0)
    return;
  pollfd ended{embedded.child.pidfd.get(), POLLIN, 0};
  const bool gone = embedded.child.pidfd.get() >= 0 && poll(&ended, 1, kGraceMilliseconds) == 1;
  if (!gone)
    kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  embedded.child.pid = -1;
}

// TORCH_REMOTE_LIBRARY: who starts an embedded server is its administrator too. Separated by colons, as in PATH.
std::vector<std::string> libraries_from_environment() {
  const char* value = std::getenv("TORCH_REMOTE_LIBRARY");
  std::istringstream list(value == nullptr ? "" : value);
  std::vector<std::string> libraries;
  for (std::string library; std::getline(list, library, ':');) {
    if (!library.empty())
      libraries.push_back(library);
  }
  return libraries;
}

std::unique_ptr<transport::Stream> start_embedded(const std::string& path, int threads,
                                                  Embedded& embedded) {
  auto [ours, theirs] = socket_pair();
  std::vector<std::string> arguments = {"torch-remote-server", "serve",
                                        "--session-fd",        std::to_string(kInheritedDescriptor),
                                        "--parent-pid",        std::to_string(getpid())};
  for (const std::string& library : libraries_from_environment()) {
    arguments.push_back("--library");
    arguments.push_back(library);
  }
  // OpenMP reads its number of threads once, before the context can tell it ours.
  Child child = spawn_server(path, arguments, {{"OMP_NUM_THREADS", std::to_string(threads)}},
                             std::move(theirs));
  MutexLock lock(embedded.mutex);
  embedded.child = std::move(child);
  return transport::socket_stream(std::move(ours), "the embedded server");
}

std::unique_ptr<transport::Stream> with_delay(std::unique_ptr<transport::Stream> stream) {
  const char* net = std::getenv("TORCH_REMOTE_NET");
  if (net == nullptr || *net == '\0')
    return stream;
  return transport::delayed(std::move(stream), transport::parse_delay(net));
}

}  // namespace

Session::Way way_to(const std::string& url, const std::string& server_path) {
  if (url == "local") {
    const int threads = at::get_num_threads();
    auto embedded = std::make_shared<Embedded>();
    return {[server_path, threads, embedded] {
              return with_delay(start_embedded(server_path, threads, *embedded));
            },
            [embedded] { end_embedded(*embedded); }};
  }
  const transport::Address address = transport::parse_address(url);
  auto dial = [address](std::chrono::steady_clock::time_point deadline) {
    return with_delay(transport::dial(address, deadline));
  };
  return {[dial] { return dial(std::chrono::steady_clock::now() + kDialPatience); }, nullptr, dial};
}

std::string token_from_environment() {
  if (const char* path = std::getenv("TORCH_REMOTE_TOKEN_FILE")) {
    std::ifstream file(path);
    std::string token;
    if (!(file >> token))
      throw ConnectionError(std::string("cannot read a token from ") + path);
    return token;
  }
  const char* token = std::getenv("TORCH_REMOTE_TOKEN");
  return token == nullptr ? "" : token;
}

}  // namespace torch_remote::client
