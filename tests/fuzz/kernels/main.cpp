// Sessions with PyTorch's own kernels, on tiny tensors: only operators that clients may call.
// PyTorch is not instrumented, and some of its kernels crash for arguments that no program gives
// them. So this is no libFuzzer target: children of this process run some inputs each, and one that
// dies is told of, with the kernel that ran. A crash outside a kernel is the server's, and the exit
// code is 1. The children are confined as sessions are: Note [The sandbox].
//
//   fuzz_kernels [--runs CALLS] [--seed N] [--trusting] [--sandbox auto|off|trace]
//
// --trusting: also the operators that trust their arguments (operator_list.txt).
// --sandbox trace: prints each system call that is refused to a kernel.
#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/log.h"
#include "script.h"
#include "server/device/context.h"
#include "server/executor/failures.h"
#include "server/operators/operator_list.h"
#include "server/session/sandbox.h"
#include "session.h"
#include "stub_kernels.h"

namespace torch_remote::fuzz {
namespace {

constexpr uint64_t kInputsOfAChild = 2000;
constexpr size_t kInputBytes = 400;
constexpr unsigned kSecondsOfAnInput = 2;    // of computing; a busy machine does not matter
constexpr unsigned kSecondsOfWaiting = 300;  // for an input that waits without end

struct Settings {
  uint64_t calls = 10'000;
  uint64_t seed = 1;
  bool is_trusting = false;
  server::SandboxMode sandbox = server::SandboxMode::kAuto;
};

// Memory that parent and child share.
struct Progress {
  std::atomic<uint64_t> input{0};
  std::atomic<uint64_t> calls{0};     // of kernels
  std::atomic<uint64_t> sessions{0};  // that were not ended by a ProtocolError
  std::array<char, 128> kernel{};     // the one that runs; "" between kernels
  std::array<char, 128> sandbox{};    // what is in force in the children
};

Progress* progress = nullptr;

void tell(std::array<char, 128>& place, const char* text) {
  std::strncpy(place.data(), text, place.size() - 1);
}

void observe(const char* name) {
  if (name != nullptr)
    ++progress->calls;
  tell(progress->kernel, name == nullptr ? "" : name);
}

std::vector<c10::OperatorHandle> callable_operators(bool is_trusting) {
  std::vector<c10::OperatorHandle> callable;
  for (const c10::OperatorHandle& operation : all_operators()) {
    const auto kind = server::find_listed(c10::toString(operation.operator_name())).kind;
    if (kind == server::OperatorClass::kRuns ||
        (is_trusting && kind == server::OperatorClass::kUnchecked))
      callable.push_back(operation);
  }
  return callable;
}

void run_input(uint64_t number, const Settings& settings,
               const std::vector<c10::OperatorHandle>& callable) {
  std::mt19937_64 random(settings.seed * 0x9E3779B97F4A7C15 + number);
  std::array<uint64_t, kInputBytes / 8> words;
  for (uint64_t& word : words)
    word = random();
  try {
    Session session;
    Script(Draw(std::as_bytes(std::span(words)), Temper::kTame), session, callable).run();
    ++progress->sessions;
  } catch (const ProtocolError&) {
  } catch (const ConnectionError&) {
  } catch (const server::DeviceLost&) {
  }
}

// Timers that a session may set too.
void limit_time() {
  const itimerval computing{{0, 0}, {kSecondsOfAnInput, 0}};
  setitimer(ITIMER_PROF, &computing, nullptr);
  alarm(kSecondsOfWaiting);
}

// As a session does before the first message of its client.
void confine(server::SandboxMode mode) {
  server::Sandbox sandbox = server::confine_files(mode, {});
  server::confine_calls(sandbox, {}, /*uses_cuda=*/false);
  tell(progress->sandbox, sandbox.describe().c_str());
}

// Runs inputs from `first` on, in a process of its own: it may die.
[[noreturn]] void run_child(uint64_t first, const Settings& settings,
                            const std::vector<c10::OperatorHandle>& callable) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  at::set_num_threads(1);
  set_log_level(LogLevel::kError);
  const c10::InferenceMode inference_mode;
  use_real_kernels(&observe);
  const wire::Context context = server::present_context();
  confine(settings.sandbox);
  for (uint64_t i = first; i < first + kInputsOfAChild; ++i) {
    progress->input = i;
    limit_time();
    run_input(i, settings, callable);
    server::apply_context(context);
  }
  _exit(0);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF)
    return "computed for more than " + std::to_string(kSecondsOfAnInput) + " s";
  if (WIFSIGNALED(status))
    return strsignal(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

struct Death {
  uint64_t count = 0;
  uint64_t first_input = 0;
};

int run(const Settings& settings) {
  void* const page =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    throw std::runtime_error("no memory for the page that the processes share");
  progress = new (page) Progress;
  const auto callable = callable_operators(settings.is_trusting);
  std::map<std::string, Death> deaths;
  uint64_t next = 0;
  bool is_ours = false;
  while (progress->calls < settings.calls) {
    const pid_t child = fork();
    if (child < 0)
      throw std::runtime_error("cannot start a process");
    if (child == 0)
      run_child(next, settings, callable);
    int status = 0;
    waitpid(child, &status, 0);
    next += kInputsOfAChild;
    if (status == 0)
      continue;
    const std::string kernel = progress->kernel.data();
    is_ours = is_ours || kernel.empty();
    Death& death =
        deaths[(kernel.empty() ? "outside a kernel" : kernel) + ": " + how_it_ended(status)];
    if (death.count++ == 0)
      death.first_input = progress->input;
    next = progress->input + 1;
    observe(nullptr);
  }
  std::cout << progress->calls << " calls of kernels of " << callable.size() << " operators in "
            << next << " inputs; " << progress->sessions << " sessions ended well\n"
            << "sandbox: " << progress->sandbox.data() << '\n';
  for (const auto& [what, death] : deaths)
    std::cout << what << ", " << death.count << " times, first in input " << death.first_input
              << '\n';
  return is_ours ? 1 : 0;
}

uint64_t number_of(const char* text) {
  uint64_t value = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error != std::errc() || rest != end)
    throw std::runtime_error(std::string("not a number: ") + text);
  return value;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--trusting")
      settings.is_trusting = true;
    else if (option == "--runs" && i + 1 < argc)
      settings.calls = number_of(argv[++i]);
    else if (option == "--seed" && i + 1 < argc)
      settings.seed = number_of(argv[++i]);
    else if (option == "--sandbox" && i + 1 < argc)
      settings.sandbox = server::parse_sandbox(argv[++i]);
    else
      throw std::runtime_error(
          "usage: fuzz_kernels [--runs CALLS] [--seed N] [--trusting] [--sandbox auto|off|trace]");
  }
  return settings;
}

}  // namespace
}  // namespace torch_remote::fuzz

int main(int argc, char** argv) {
  try {
    return torch_remote::fuzz::run(torch_remote::fuzz::parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
