#include <cstdlib>
#include <sstream>
#include <utility>

#include <unistd.h>

#include <ATen/Parallel.h>

#include "base/mutex.h"
#include "base/platform.h"
#include "base/session_page.h"
#include "client/link/open.h"
#include "transport/fd_stream.h"

namespace torch_remote::client {
namespace {

constexpr std::chrono::milliseconds kGrace{500};
// How many of the last calls an error lists.
constexpr size_t kCallsInError = 8;

// The embedded server's process, once it is started.
struct Embedded {
  Mutex mutex;
  Child child GUARDED_BY(mutex);
  int status GUARDED_BY(mutex) = 0;  // from waitpid(), once it has ended
  SessionPage::View page GUARDED_BY(mutex);
};

// The server ends when its socket closes; if it does not (stopped, or in an operator) it is killed.
void end_embedded(Embedded& embedded) {
  MutexLock lock(embedded.mutex);
  end_child(embedded.child, kGrace);
}

// How the process has failed or was killed, and its last calls; empty if it ended well.
std::string examine_embedded(Embedded& embedded) {
  MutexLock lock(embedded.mutex);
  if (const auto status = wait_for_end(embedded.child, kGrace))
    embedded.status = *status;
  if (embedded.page == nullptr || embedded.child.pid > 0)
    return {};
  const std::string kill = describe_kill(embedded.status);
  if (kill.empty()) {
    const std::string failure = describe_failure(embedded.status);
    return failure.empty() ? "" : "the embedded server " + failure;
  }
  const std::string calls = embedded.page->last_calls(kCallsInError);
  return "the embedded server was " + kill + (calls.empty() ? "" : "; its last: " + calls);
}

// TORCH_REMOTE_LIBRARY, for the embedded server. Separated by colons, as in PATH.
std::vector<std::string> libraries_from_environment() {
  const char* value = std::getenv("TORCH_REMOTE_LIBRARY");
  std::istringstream list(value == nullptr ? "" : value);
  std::vector<std::string> libraries;
  for (std::string library; std::getline(list, library, ':');)
    if (!library.empty())
      libraries.push_back(library);
  return libraries;
}

std::unique_ptr<transport::Stream> start_embedded(const std::string& path,
                                                  const std::vector<std::string>& options,
                                                  int threads, Embedded& embedded) {
  auto [ours, theirs] = socket_pair();
  std::vector<std::string> arguments = {
      "torch-remote-server", "serve",
      "--session-fd",        std::to_string(kInheritedDescriptor),
      "--parent-pid",        std::to_string(getpid()),
      "--page-fd",           std::to_string(kInheritedDescriptor + 1)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const std::string& library : libraries_from_environment()) {
    arguments.push_back("--library");
    arguments.push_back(library);
  }
  // OpenMP reads its number of threads once, before the first CONTEXT message.
  std::vector<Fd> inherited;
  inherited.push_back(std::move(theirs));
  inherited.push_back(SessionPage::make_memory());
  SessionPage::View page = SessionPage::view(inherited.back());
  Child child = spawn_server(path, arguments, {{"OMP_NUM_THREADS", std::to_string(threads)}},
                             std::move(inherited));
  MutexLock lock(embedded.mutex);
  embedded.child = std::move(child);
  embedded.page = std::move(page);
  return transport::socket_stream(std::move(ours), "the embedded server");
}

}  // namespace

Endpoint embedded_server(const std::string& path, std::vector<std::string> options) {
  const int threads = at::get_num_threads();
  auto embedded = std::make_shared<Embedded>();
  Endpoint endpoint;
  endpoint.url = "local";
  endpoint.open = [path, options = std::move(options), threads, embedded] {
    return start_embedded(path, options, threads, *embedded);
  };
  endpoint.clean_up = [embedded] { end_embedded(*embedded); };
  endpoint.post_mortem = [embedded] { return examine_embedded(*embedded); };
  endpoint.has_our_torch = true;
  return endpoint;
}

}  // namespace torch_remote::client
